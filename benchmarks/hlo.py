"""Operations of a compiled program, from the text of XLA's optimised HLO, and its FLOPs, counted
from the jaxpr."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain, groupby
from typing import Any, NamedTuple

from jax.extend.core import jaxprs_in_params

from dml_jax.lab.compilation import COLLECTIVES, INSTRUCTION, LIBRARY, ON_CHIP, SCRATCH, size

DONE = ("copy", "all-reduce", "all-gather", "collective-permute")
NO_TRAFFIC = (
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "slice-start"),
    *(f"{name}-done" for name in DONE),
)
SLICES = ("slice", "slice-done", "dynamic-slice")
GRAPH = 5  # launches from which on XLA makes a CUDA graph of them


class Instruction(NamedTuple):
    """One line of HLO: its name, result type, operation, and the rest: operands and attributes."""

    name: str
    result: str
    operation: str
    rest: str


def computations(text: str) -> dict[str, list[Instruction]]:
    """The instructions of a program by the name of their computation; "" is the entry."""
    current: list[Instruction] = []
    found = {"": current}
    for line in text.splitlines():
        if header := re.match(r"\s*(ENTRY )?%?([\w.-]+) \(.*\{$", line):
            current = found.setdefault("" if header[1] else header[2], [])
        elif instruction := INSTRUCTION.match(line):
            current.append(Instruction(*instruction.groups()))
    return found


def instructions(text: str) -> Iterator[Instruction]:
    """The instructions of all computations of a program."""
    return chain.from_iterable(computations(text).values())


def _in_memory(types: str) -> int:
    """Bytes of the arrays in a type that are in a device's main memory: what a TPU keeps on the
    chip has S(1) in its layout. Libraries' scratch is left out."""
    return size(ON_CHIP.sub("", SCRATCH.sub("", types)))


def _library_product(call: Instruction) -> str:
    """The product that a call of a library computes; "other" if it is none."""
    target = re.search(r'custom_call_target="([^"]*)"', call.rest)
    kinds = (kind for name, kind in LIBRARY.items() if target and name in target[1])
    return next(kinds, "other")


def copies(text: str) -> dict[str, int]:
    """Count of transposes and copies, fused ones included, and bytes of their results; a TPU's
    transfers between main memory and the chip are not copies."""
    kinds = ("transpose", "copy")
    sizes = [size(found.result) for found in instructions(text) if found.operation in kinds]
    return {"count": len(sizes), "bytes": sum(sizes)}


def traffic(text: str) -> float:
    """Bytes that the program reads from and writes to a device's memory, an estimate.

    Every instruction of the entry computation and of the loops in it, with fusions as one
    instruction, reads its operands and writes its result. What XLA places in a TPU's memory on the
    chip is left out; other caches are not taken into account. Of an operand that is only sliced,
    the slices are read.
    """
    parts = computations(text)

    def of(computation: list[Instruction]) -> float:
        total, types = 0.0, {found.name: found.result for found in computation}
        for found in computation:
            if found.operation == "while":
                total += of(_called("body", found, parts)) * _trips(found)
            elif found.operation not in NO_TRAFFIC:
                operands = re.findall(r"%([\w.-]+)", found.rest.partition(")")[0])
                read = {i: _in_memory(types.get(name, "")) for i, name in enumerate(operands)}
                sliced = _read_by(_called("calls", found, parts), found)
                read |= {i: part for i, part in sliced.items() if read.get(i, part)}
                result = found.result
                if found.operation == "copy-start":  # (result, operand, …)
                    result = result.lstrip("(").partition("}, ")[0] + "}"
                total += _in_memory(result) + sum(read.values())
        return total

    return of(parts[""])


def launches(text: str) -> dict[str, Any]:
    """Kernels and calls of libraries that a program starts on a GPU, by kind ("kinds"), how many of
    them in CUDA graphs ("in graphs"), and of how many ("graphs"); likewise if convolutions are in
    graphs, too ("with convolutions").

    A graph has at least `GRAPH` launches that follow each other; XLA leaves collectives and loops
    out of graphs and, by default, convolutions.
    """
    parts = computations(text)

    def walk(computation: list[Instruction]) -> Iterator[str]:
        """The kinds of launches in their order, and "" where a loop's body begins or ends."""
        for found in computation:
            if found.operation == "while":
                for _ in range(_trips(found)):
                    yield from ("", *walk(_called("body", found, parts)), "")
            elif found.operation not in NO_TRAFFIC:
                yield _kind(found, parts)

    def graphs(*apart: str) -> dict[str, int]:
        runs = groupby(sequence, lambda kind: bool(kind) and kind not in apart)
        sizes = [size for together, run in runs if together and (size := len(list(run))) >= GRAPH]
        return {"graphs": len(sizes), "in graphs": sum(sizes)}

    sequence = list(walk(parts[""]))
    return {
        "kinds": dict(Counter(filter(None, sequence)).most_common()),
        **graphs("collective", "convolution"),
        "with convolutions": graphs("collective"),
    }


def _kind(found: Instruction, parts: dict[str, list[Instruction]]) -> str:
    """Kind of a launch: product, convolution, attention, collective, reduction, copy, elementwise
    or other."""
    operations = {found.operation.removesuffix("-start")}
    key = "to_apply" if found.operation == "call" else "calls"
    if called := _called(key, found, parts):
        operations = {inner.operation for inner in called}
    elif found.operation == "custom-call":
        return _library_product(found).replace("dot", "product")
    if not operations.isdisjoint(COLLECTIVES):
        return "collective"
    named = {"convolution": "convolution", "dot": "product", "reduce": "reduction"}
    named |= {"transpose": "copy", "copy": "copy"}
    return next((kind for name, kind in named.items() if name in operations), "elementwise")


def _called(key: str, found: Instruction, parts: dict[str, list[Instruction]]) -> list[Instruction]:
    """The computation that an instruction names by this key; empty if there is none."""
    named = re.search(rf"{key}=%?([\w.-]+)", found.rest)
    return parts.get(named[1], []) if named else []


def _trips(loop: Instruction) -> int:
    """How often a loop runs, 1 if that is not known."""
    found = re.search(r"known_trip_count[^0-9]*(\d+)", loop.rest)
    return int(found[1]) if found else 1


def _read_by(computation: list[Instruction], caller: Instruction) -> dict[int, int]:
    """Bytes that a slice or fusion reads of the operands that it only slices, by position."""
    if caller.operation in SLICES:
        return {0: size(caller.result)}
    read = {}
    for parameter in (found for found in computation if found.operation == "parameter"):
        named = re.compile(rf"%{re.escape(parameter.name)}\b(?![\w.-])")
        users = [user for user in computation if named.search(user.rest)]
        if users and all(user.operation in SLICES for user in users):
            position = int(parameter.rest.partition(")")[0])
            read[position] = sum(size(user.result) for user in users)
    return read


def flops(jaxpr: Any, platform: str) -> float:
    """FLOPs of the products and convolutions of a traced program; XLA gives none for GPUs.

    Loops count as often as they run where that is known, once elsewhere. Of branches, that of the
    platform counts, or the most expensive one.
    """
    total = 0.0
    for equation in jaxpr.eqns:
        parameters = equation.params
        result = math.prod(equation.outvars[0].aval.shape) if equation.outvars else 0
        match equation.primitive.name:
            case "dot_general":
                contracted = parameters["dimension_numbers"][0][0]
                shape = equation.invars[0].aval.shape
                total += 2.0 * result * math.prod(shape[i] for i in contracted)
            case "conv_general_dilated":
                kernel, numbers = equation.invars[1].aval.shape, parameters["dimension_numbers"]
                # Zeros between the inputs cost nothing.
                inserted = math.prod(parameters["lhs_dilation"])
                total += 2.0 * result * math.prod(kernel) / kernel[numbers.rhs_spec[0]] / inserted
            case "cond":
                costs = [flops(branch.jaxpr, platform) for branch in parameters["branches"]]
                platforms = parameters.get("branches_platforms") or ()
                own = (
                    cost
                    for cost, names in zip(costs, platforms, strict=False)
                    if names is None or platform in names
                )
                total += next(own, max(costs))
            case name:
                times = 1
                if name == "scan":
                    times = parameters["length"]
                elif name == "shard_map":  # shapes are of a device's part
                    times = parameters["mesh"].size
                inner = jaxprs_in_params(parameters)
                total += times * sum(flops(each, platform) for each in inner)
    return total
