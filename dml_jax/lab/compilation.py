"""Compiles the training step of a configuration for absent devices and estimates its costs.

A step takes at least as long as its products, memory traffic or transfers at the vendor's peak
rates. Traffic within loops (`train.chunks`) and kernel launches are not counted.
"""

import importlib.util
import math
import os
import re
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh
from rich.table import Table

from dml_jax.config import Config, plugin_module
from dml_jax.data import formats
from dml_jax.data.split import Split
from dml_jax.errors import ConfigError
from dml_jax.train import experiment as experiments
from dml_jax.train.distributed import device_mesh
from dml_jax.train.experiment import Experiment

GIB = 2**30
Facts = dict[str, Any]
H100 = """gpu_device_info {
      threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
      shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
      block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
      memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
      device_memory_size: 84942979072 shared_memory_per_block_optin: 232448
      cuda_compute_capability { major: 9 minor: 0 } registers_per_core_limit: 65536
      registers_per_block_limit: 65536 driver_version: "12.9.0" runtime_version: "12.9.0"
      compile_time_toolkit_version: "12.9.0" }
    platform_name: "CUDA" dnn_version_info { major: 9 minor: 8 patch: 0 }
    runtime_version { major: 12 minor: 9 patch: 0 } device_description_str: "NVIDIA H100 80GB HBM3"
"""
TOPOLOGIES = (
    "h100:N or h100:HOSTSxN (GPUs of a host), v5e:2x2, v5e:2x4, v5e:4x4, v5e:8x8 or v5e:16x16"
)
# Instructions of HLO: name, type of the result, operation, operands and attributes.
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*)$", re.MULTILINE)
ARRAY = re.compile(r"\b(pred|(?:bf|[sufc])(\d+)\w*)\[([\d,]*)\]")  # type, its bits, shape
ON_CHIP = re.compile(r"\w+\[[\d,]*\]\{[^}]*S\([1-9]\d*\)[^}]*\}")  # in a TPU's on-chip memory
SCRATCH = re.compile(r", [su]8\[\d*\]\{0\}(?=\)$)")  # of a library's call, after its results
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
LIBRARY = {"__cublas": "dot", "__cudnn$conv": "convolution", "__cudnn$fmha": "attention"}
NO_TRAFFIC = re.compile("parameter|constant|tuple|get-tuple-element|bitcast|after-all|.*-done")


class Topology(NamedTuple):
    """Devices to compile for, and a device's peak rates per second and memory in bytes."""

    name: str
    mesh: Mesh
    options: dict[str, bool]  # for the compiler
    flops: dict[str, float]  # dense products by precision
    bandwidth: float  # memory
    memory: int
    network: float  # between devices of a host, in one direction


H100_FLOPS = {"float32": 67e12, "tensorfloat32": 494e12, "bfloat16": 989e12}
V5E_FLOPS = {"float32": 197e12 / 6, "bfloat16": 197e12}  # float32 takes six passes of bfloat16
CHIPS = {
    "h100": (H100_FLOPS, 3.35e12, 84_942_979_072, 450e9),
    "v5e": (V5E_FLOPS, 819e9, 16 * GIB, 200e9),
}


def find_topology(name: str) -> Topology:
    """The devices for a name such as "h100:8", "h100:2x8" or "v5e:4x4".

    Raises ConfigError if the name is unknown or the wheels for the platform are not installed.
    """
    pattern = r"h100:(?:([1-9]\d{0,3})x)?([1-9]\d{0,2})|v5e:(?:2x2|2x4|4x4|8x8|16x16)"
    if (match := re.fullmatch(pattern, name)) is None:
        raise ConfigError(f"--topology={name}: unknown topology; give {TOPOLOGIES}")
    platform, module, description = "tpu", "libtpu", {"topology_name": name}
    if match[2]:
        platform, module, shape = "cuda", "jax_cuda12_plugin", f"{match[1] or 1}x1x{match[2]}"
        description = {"topology_name": "any", "topology": shape, "target_config": H100}
    if importlib.util.find_spec(module) is None:
        remedy = f"pip install -r requirements-{platform}.txt"
        raise ConfigError(f"--topology={name}: JAX cannot compile for this platform; {remedy}")
    # No metadata server knows the host's position in a TPU pod.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    devices = topologies.get_topology_desc(platform=platform, **description).devices
    mesh = Mesh(np.array(devices), (device_mesh.AXIS,), axis_types=(AxisType.Auto,))
    # Without a device to measure on, Triton finds no tile sizes for some products.
    options = {"xla_gpu_enable_triton_gemm": False} if match[2] else {}
    return Topology(name, mesh, options, *CHIPS[name.partition(":")[0]])


def describe(config: Config, mesh: Mesh) -> Experiment:
    """The experiment of a configuration on absent devices, with random weights and blank images."""
    config = replace(config, backbone=replace(config.backbone, pretrained="none"), init_from="")
    if getattr(config.method, "teacher", ""):
        raise ConfigError("method.teacher: cannot compile a step that needs a trained model")
    recipe = getattr(plugin_module("data", config.data.name), "RECIPE", None)
    if recipe is None or recipe.counts is None:
        return experiments.build(config, formats.load(config.data), mesh)
    side = config.data.resize or config.data.image_size or 256
    pixels: Any = lambda index, rng: np.zeros((side, side, 3), np.uint8)  # noqa: E731
    splits = {
        name: Split(np.arange(n) % classes, [""] * n, pixels, [*map(str, range(classes))])
        for name, (n, classes) in recipe.counts.items()
    }
    return experiments.build(config, splits, mesh)


def traced(experiment: Experiment) -> jax.stages.Traced:
    """The training step traced for the shapes and shardings of state, batch and key."""

    def placed(array: Any, sharding: Any = None) -> jax.ShapeDtypeStruct:
        sharding = sharding or device_mesh.row_sharded(mesh, int(array.ndim > 1))  # [views, B, …]
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)

    mesh, state = experiment.mesh, experiment.template()
    batch = jax.tree.map(placed, experiment.example_batch())
    key = placed(experiment.key, device_mesh.replicated(mesh))
    return experiment.jitted_step(state).trace(jax.tree.leaves(state), batch, key)


def memory(lowered: jax.stages.Lowered, topology: Topology) -> tuple[float, str]:
    """Memory on one device in bytes, and the optimised HLO; empty if it does not fit."""
    try:
        program = lowered.compile(compiler_options=dict(topology.options))
    except jax.errors.JaxRuntimeError as error:
        if not (reported := re.search(r"(?s)EXHAUSTED.*Used ([\d.]+)([MG]) of", str(error))):
            raise
        return float(reported[1]) * {"M": 2**20, "G": GIB}[reported[2]], ""
    analysis: Any = program.memory_analysis()
    results = analysis.output_size_in_bytes - analysis.alias_size_in_bytes
    total = analysis.argument_size_in_bytes + analysis.temp_size_in_bytes + results
    return total, program.as_text() or ""


def costs(config: Config, topology: Topology) -> Facts:
    """Memory, operations and minimum time of the training step on each device.

    Raises ConfigError if it does not fit, or if the size of the batch or data set is unsuitable.
    """
    experiment = describe(config, topology.mesh)
    required, text = memory(traced(experiment).lower(), topology)
    if required > topology.memory:
        sizes = f"{required / GIB:.1f} GiB of the {topology.memory / GIB:.1f} of {topology.name}"
        problem = f"data.batch_size={config.data.batch_size}: the training step needs {sizes}"
        raise ConfigError(
            f"{problem}; set a smaller batch size, a larger train.chunks, or more devices"
        )
    # XLA does not count FLOPs for GPUs, so count those of the CPU program, without recomputation.
    single_pass = replace(config, train=replace(config.train, precision="float32", chunks=1))
    cpu = Mesh(np.array(jax.devices("cpu")[:1]), (device_mesh.AXIS,), axis_types=(AxisType.Auto,))
    cost_analysis: Any = traced(describe(single_pass, cpu)).lower().cost_analysis()
    facts = {"memory": required, "flops": float(cost_analysis["flops"]), **operations(text)}
    return facts | bound(experiment, topology, facts)


def bound(experiment: Experiment, topology: Topology, facts: Facts) -> Facts:
    """The minimum time of a training step in seconds, and what limits it."""
    devices, config = topology.mesh.size, experiment.config
    results = facts["collectives"].items()
    transferred = sum(
        result["bytes"] * (2 if "all-reduce" in name else 1) for name, result in results
    )
    seconds = {
        "compute": facts["flops"] / devices / topology.flops[config.train.precision],
        "memory": facts["traffic"] / topology.bandwidth,
        "network": transferred * (devices - 1) / devices / topology.network,
    }
    limit, shortest = max(seconds.items(), key=lambda item: item[1])
    rate = config.data.batch_size * experiment.method.hooks.views / shortest
    return {
        "seconds": seconds,
        "bound": {"by": limit, "seconds": shortest},
        "images_per_second": rate,
    }


def operations(text: str) -> Facts:
    """Products, results of collectives, and traffic of the entry computation in optimised HLO."""
    types, products, traffic = dict[str, str](), Counter[str](), 0
    collectives: dict[str, Counter[str]] = defaultdict(Counter)
    entry = text.index("ENTRY")
    for match in INSTRUCTION.finditer(text):
        name, result, operation, rest = match.groups()
        types[name] = result = SCRATCH.sub("", result)
        operands, _, attributes = rest.partition(")")
        operand_types = [types.get(operand, "") for operand in re.findall(r"%([\w.-]+)", operands)]
        library = (kind for call, kind in LIBRARY.items() if f'target="{call}' in attributes)
        if (product := next(library, operation)) in LIBRARY.values():
            products[f"{product} {kinds(*operand_types[:2])}"] += 1
        # Only the second of an asynchronous pair returns just the result.
        if (collective := operation.removesuffix("-done")) in COLLECTIVES:
            collectives[f"{collective} {kinds(result)}"].update(count=1, bytes=size(result))
        if match.start() > entry and not NO_TRAFFIC.fullmatch(operation):
            # The type of a copy includes its operand; a slice reads as much as it writes.
            operand_types = (
                [result]
                if "slice" in operation
                else []
                if operation == "copy-start"
                else operand_types
            )
            traffic += sum(size(ON_CHIP.sub("", type_)) for type_ in (result, *operand_types))
    return {"products": products, "collectives": collectives, "traffic": traffic}


def kinds(*types: str) -> str:
    return "×".join(sorted({kind for kind, *_ in ARRAY.findall(" ".join(types))}))


def size(types: str) -> int:
    """Size in bytes of the arrays in an HLO type, which may be a tuple; pred takes one byte."""
    arrays = [(int(bits or 8), filter(None, s.split(","))) for _, bits, s in ARRAY.findall(types)]
    return sum(bits * math.prod(map(int, shape)) for bits, shape in arrays) // 8


def table(title: str, facts: Facts) -> Table:
    """A table of the result of `costs`."""
    result = Table("a device", "training step", title=title, caption="at the vendor's peak rates")
    mebibytes = lambda count: f"{count / 2**20:,.2f} MiB"  # noqa: E731
    rows = {"memory": mebibytes(facts["memory"]), "memory traffic": mebibytes(facts["traffic"])}
    rows |= {name: str(count) for name, count in facts["products"].items()}
    rows |= {
        name: f"{c['count']}, {mebibytes(c['bytes'])}" for name, c in facts["collectives"].items()
    }
    rows["FLOPs, all devices"] = f"{facts['flops']:.3g}"
    rows |= {
        f"{limit} takes at least": f"{1000 * s:.2f} ms" for limit, s in facts["seconds"].items()
    }
    rows["images/s, at most"] = f"{facts['images_per_second']:,.0f}"
    for row in rows.items():
        result.add_row(*row)
    return result
