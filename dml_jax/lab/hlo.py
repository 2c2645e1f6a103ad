"""Operations of a compiled program, from the text of XLA's optimised HLO, and its FLOPs, counted
from the jaxpr."""

import math
import re
from collections import Counter
from collections.abc import Iterator
from itertools import chain, groupby
from typing import Any, NamedTuple

import jax
from jax.extend.core import jaxprs_in_params

SIZES = {"pred": 1, "s4": 0.5, "u4": 0.5, "c64": 8, "c128": 16} | {
    f"{kind}{bits}": bits / 8 for kind in ("s", "u", "f", "bf") for bits in (8, 16, 32, 64)
}
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*)$")
ARRAY = re.compile(r"\b(pred|bf16|[suf]\d+(?:e\dm\d\w*)?|c\d+)\[([\d,]*)\]")
ON_CHIP = re.compile(r"\w+\[[\d,]*\]\{[^}]*S\([1-9]\d*\)[^}]*\}")
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
DONE = ("copy", "all-reduce", "all-gather", "collective-permute")
NO_TRAFFIC = (
    *("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "after-all", "slice-start"),
    *(f"{name}-done" for name in DONE),
)
SLICES = ("slice", "slice-done", "dynamic-slice")
LIBRARY_PRODUCTS = {"__cublas": "dot", "__cudnn$conv": "convolution", "__cudnn$fmha": "attention"}
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


def arrays(types: str) -> list[tuple[str, int]]:
    """(data type, number of elements) of the arrays in a type, which may be a tuple."""
    return [
        (kind, math.prod(map(int, filter(None, shape.split(",")))))
        for kind, shape in ARRAY.findall(types)
    ]


def size(types: str) -> int:
    """Bytes of the arrays in a type."""
    return int(sum(SIZES.get(kind, 1) * count for kind, count in arrays(types)))


def _in_memory(types: str) -> int:
    """Bytes of the arrays in a type that are in a device's main memory: what a TPU keeps on the
    chip has S(1) in its layout."""
    return size(ON_CHIP.sub("", types))


def collectives(text: str) -> list[dict[str, Any]]:
    """Transfers between devices by operation and data type, with their count and the bytes of a
    device's results."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for instruction in instructions(text):
        operation = instruction.operation.removesuffix("-start")
        if operation in COLLECTIVES:
            results = arrays(instruction.result)
            if instruction.operation == "all-gather-start":  # (operands, results)
                results = results[len(results) // 2 :]
            elif instruction.operation == "collective-permute-start":  # (operand, result, …)
                results = results[1:2]
            kinds = {kind for kind, count in results if count > 1}
            for kind in kinds or {kind for kind, _ in results}:
                new = {"operation": operation, "type": kind, "count": 0, "bytes": 0}
                row = found.setdefault((operation, kind), new)
                row["count"] += 1
                elements = sum(count for other, count in results if other == kind)
                row["bytes"] += int(SIZES.get(kind, 1) * elements)
    return [found[key] for key in sorted(found)]


def products(text: str) -> list[dict[str, Any]]:
    """Products and convolutions by operation, data type of the operands and precision, with their
    count.

    The precision of an operation of cuDNN is not in the HLO; it follows from the type.
    """
    types, found = {}, []
    for instruction in instructions(text):
        types[instruction.name] = instruction.result
        operation = instruction.operation
        if operation == "custom-call":
            operation = _library_product(instruction)
        if operation in ("dot", "convolution", "attention"):
            found.append((operation, instruction.rest))
    counts = Counter[tuple[str, str, str]]()
    for operation, rest in found:
        names = re.findall(r"%([\w.-]+)", rest.partition(")")[0])[:2]
        kinds = sorted({kind for name in names for kind, _ in arrays(types.get(name, ""))})
        asked = re.search(r'operand_precision"?[=:][\[{]"?(\w+)', rest)
        counts[operation, "×".join(kinds), asked[1].lower() if asked else "default"] += 1
    return [
        {"operation": operation, "type": kind, "precision": precision, "count": count}
        for (operation, kind, precision), count in sorted(counts.items())
    ]


def _library_product(call: Instruction) -> str:
    """The product that a call of a library computes; "other" if it is none."""
    target = re.search(r'custom_call_target="([^"]*)"', call.rest)
    kinds = (kind for name, kind in LIBRARY_PRODUCTS.items() if target and name in target[1])
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


def kinds(text: str) -> dict[str, str]:
    """The kinds of a program's instructions, on any platform, by name; loops have none, because
    they consist of others."""
    parts, silent = computations(text), {*NO_TRAFFIC, "while", "conditional"}
    every = (found for found in instructions(text) if found.operation not in silent)
    return {found.name: _kind(found, parts) for found in every}


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


def flops(function: Any, *arguments: Any, platform: str) -> float:
    """FLOPs of the products and convolutions of a function of arrays or their shapes; XLA gives
    none for some devices.

    Loops count as often as they run where that is known, once elsewhere. Of branches, that of the
    platform counts, or the most expensive one.
    """
    return _flops(jax.make_jaxpr(function)(*arguments).jaxpr, platform)


def _flops(jaxpr: Any, platform: str) -> float:
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
                costs = [_flops(branch.jaxpr, platform) for branch in parameters["branches"]]
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
                total += times * sum(_flops(each, platform) for each in inner)
    return total
