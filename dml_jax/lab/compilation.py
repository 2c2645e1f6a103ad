"""Compiles the training step of a configuration for absent devices and reads its costs.

A step takes at least the longest of its products, memory traffic and transfers at the vendor's
peak figures. Traffic within loops (`train.chunks`) and the start of kernels are not counted.
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
KNOWN = "h100:N or h100:HOSTSxN (GPUs of a host), v5e:2x2, v5e:2x4, v5e:4x4, v5e:8x8 or v5e:16x16"
# Instructions of HLO: name, type of the result, operation, operands and attributes.
INSTRUCTION = re.compile(r"^\s*(?:ROOT )?%?([\w.-]+) = (\(.*?\)|\S+) ([\w-]+)\((.*)$", re.MULTILINE)
ARRAY = re.compile(r"\b(pred|(?:bf|[sufc])(\d+)\w*)\[([\d,]*)\]")  # type, its bits, shape
ON_CHIP = re.compile(r"\w+\[[\d,]*\]\{[^}]*S\([1-9]\d*\)[^}]*\}")  # in a TPU's own memory
SCRATCH = re.compile(r", [su]8\[\d*\]\{0\}(?=\)$)")  # of a library's call, after its results
COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
LIBRARY = {"__cublas": "dot", "__cudnn$conv": "convolution", "__cudnn$fmha": "attention"}
NO_TRAFFIC = re.compile("parameter|constant|tuple|get-tuple-element|bitcast|after-all|.*-done")


class Topology(NamedTuple):
    """Devices to compile for, and the vendor's peak figures of one, per second and in bytes."""

    name: str
    mesh: Mesh
    options: dict[str, bool]  # of the compiler
    flops: dict[str, float]  # dense products by precision
    bandwidth: float  # memory
    memory: int
    network: float  # to the other devices of a host, in one direction


H100_FLOPS = {"float32": 67e12, "tensorfloat32": 494e12, "bfloat16": 989e12}
V5E_FLOPS = {"float32": 197e12 / 6, "bfloat16": 197e12}  # float32 takes six passes of bfloat16
CHIPS = {
    "h100": (H100_FLOPS, 3.35e12, 84_942_979_072, 450e9),
    "v5e": (V5E_FLOPS, 819e9, 16 * GIB, 200e9),
}


def find_topology(name: str) -> Topology:
    """The devices that a name such as "h100:8", "h100:2x8" or "v5e:4x4" stands for.

    Raises ConfigError if the name is unknown or the wheels of its platform are not installed.
    """
    pattern = r"h100:(?:([1-9]\d{0,3})x)?([1-9]\d{0,2})|v5e:(?:2x2|2x4|4x4|8x8|16x16)"
    if (found := re.fullmatch(pattern, name)) is None:
        raise ConfigError(f"--topology={name}: is unknown; give {KNOWN}")
    platform, module, described = "tpu", "libtpu", {"topology_name": name}
    if found[2]:
        platform, module, shape = "cuda", "jax_cuda12_plugin", f"{found[1] or 1}x1x{found[2]}"
        described = {"topology_name": "any", "topology": shape, "target_config": H100}
    if importlib.util.find_spec(module) is None:
        remedy = f"pip install -r requirements-{platform}.txt"
        raise ConfigError(f"--topology={name}: JAX cannot compile for it; {remedy}")
    # There is no metadata server to ask for the host's place in its TPU pod.
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    devices = topologies.get_topology_desc(platform=platform, **described).devices
    mesh = Mesh(np.array(devices), (device_mesh.AXIS,), axis_types=(AxisType.Auto,))
    # Without a device to measure them on, Triton finds no sizes for the tiles of some products.
    options = {"xla_gpu_enable_triton_gemm": False} if found[2] else {}
    return Topology(name, mesh, options, *CHIPS[name.partition(":")[0]])


def describe(config: Config, mesh: Mesh) -> Experiment:
    """The experiment of a configuration on devices, with random weights and blank images."""
    config = replace(config, backbone=replace(config.backbone, pretrained="none"), init_from="")
    if getattr(config.method, "teacher", ""):
        raise ConfigError("method.teacher: a step that needs a trained model cannot be compiled")
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
    """The training step for the shapes of state, batch and key, with their shardings."""

    def placed(array: Any, sharding: Any = None) -> jax.ShapeDtypeStruct:
        sharding = sharding or device_mesh.row_sharded(mesh, int(array.ndim > 1))  # [views, B, …]
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=sharding)

    mesh, state = experiment.mesh, experiment.template()
    batch = jax.tree.map(placed, experiment.example_batch())
    key = placed(experiment.key, device_mesh.replicated(mesh))
    return experiment.jitted_step(state).trace(jax.tree.leaves(state), batch, key)


def memory(lowered: jax.stages.Lowered, topology: Topology) -> tuple[float, str]:
    """Bytes on one device, and the optimised HLO; "" if the compiler finds that they do not fit."""
    try:
        program = lowered.compile(compiler_options=dict(topology.options))
    except jax.errors.JaxRuntimeError as error:
        if not (used := re.search(r"(?s)EXHAUSTED.*Used ([\d.]+)([MG]) of", str(error))):
            raise
        return float(used[1]) * {"M": 2**20, "G": GIB}[used[2]], ""
    found: Any = program.memory_analysis()
    results = found.output_size_in_bytes - found.alias_size_in_bytes
    needed = found.argument_size_in_bytes + found.temp_size_in_bytes + results
    return needed, program.as_text() or ""


def costs(config: Config, topology: Topology) -> Facts:
    """Memory, operations and bound of the training step on each device.

    Raises ConfigError if it does not fit, or the batch or a missing data set has an unusable size.
    """
    experiment = describe(config, topology.mesh)
    needed, text = memory(traced(experiment).lower(), topology)
    if needed > topology.memory:
        sizes = f"{needed / GIB:.1f} GiB of the {topology.memory / GIB:.1f} of {topology.name}"
        problem = f"data.batch_size={config.data.batch_size}: the training step needs {sizes}"
        raise ConfigError(f"{problem}; set a smaller one, a larger train.chunks, or more devices")
    # XLA has no FLOPs for GPUs, so those of the program for a CPU; nothing is computed twice.
    once = replace(config, train=replace(config.train, precision="float32", chunks=1))
    cpu = Mesh(np.array(jax.devices("cpu")[:1]), (device_mesh.AXIS,), axis_types=(AxisType.Auto,))
    found: Any = traced(describe(once, cpu)).lower().cost_analysis()
    facts = {"memory": needed, "flops": float(found["flops"]), **operations(text)}
    return facts | bound(experiment, topology, facts)


def bound(experiment: Experiment, topology: Topology, facts: Facts) -> Facts:
    """The least time of a training step in seconds, by what limits it."""
    devices, config = topology.mesh.size, experiment.config
    results = facts["collectives"].items()
    sent = sum(found["bytes"] * (2 if "all-reduce" in name else 1) for name, found in results)
    seconds = {
        "compute": facts["flops"] / devices / topology.flops[config.train.precision],
        "memory": facts["traffic"] / topology.bandwidth,
        "network": sent * (devices - 1) / devices / topology.network,
    }
    by, least = max(seconds.items(), key=lambda item: item[1])
    rate = config.data.batch_size * experiment.method.hooks.views / least
    return {"seconds": seconds, "bound": {"by": by, "seconds": least}, "images_per_second": rate}


def operations(text: str) -> Facts:
    """Products, results of collectives, and traffic of the entry computation in optimised HLO."""
    types, products, traffic = dict[str, str](), Counter[str](), 0
    collectives: dict[str, Counter[str]] = defaultdict(Counter)
    entry = text.index("ENTRY")
    for found in INSTRUCTION.finditer(text):
        name, result, operation, rest = found.groups()
        types[name] = result = SCRATCH.sub("", result)
        operands, _, attributes = rest.partition(")")
        read = [types.get(operand, "") for operand in re.findall(r"%([\w.-]+)", operands)]
        library = (kind for call, kind in LIBRARY.items() if f'target="{call}' in attributes)
        if (product := next(library, operation)) in LIBRARY.values():
            products[f"{product} {kinds(*read[:2])}"] += 1
        # Only the end of an asynchronous pair has the result alone.
        if (sent := operation.removesuffix("-done")) in COLLECTIVES:
            collectives[f"{sent} {kinds(result)}"].update(count=1, bytes=size(result))
        if found.start() > entry and not NO_TRAFFIC.fullmatch(operation):
            # The result of a copy names its operand, too; of a slice, as much is read as written.
            read = [result] if "slice" in operation else [] if operation == "copy-start" else read
            traffic += sum(size(ON_CHIP.sub("", type_)) for type_ in (result, *read))
    return {"products": products, "collectives": collectives, "traffic": traffic}


def kinds(*types: str) -> str:
    return "×".join(sorted({kind for kind, *_ in ARRAY.findall(" ".join(types))}))


def size(types: str) -> int:
    """Bytes of the arrays in a type of HLO, which may be a tuple; pred takes a byte."""
    found = [(int(bits or 8), filter(None, s.split(","))) for _, bits, s in ARRAY.findall(types)]
    return sum(bits * math.prod(map(int, shape)) for bits, shape in found) // 8


def table(title: str, facts: Facts) -> Table:
    """The facts of `costs` for people."""
    made = Table("a device", "training step", title=title, caption="at the vendor's peak figures")
    shown = lambda count: f"{count / 2**20:,.2f} MiB"  # noqa: E731
    rows = {"memory": shown(facts["memory"]), "memory traffic": shown(facts["traffic"])}
    rows |= {name: str(count) for name, count in facts["products"].items()}
    rows |= {name: f"{c['count']}, {shown(c['bytes'])}" for name, c in facts["collectives"].items()}
    rows["FLOPs, all devices"] = f"{facts['flops']:.3g}"
    rows |= {f"{by} takes at least": f"{1000 * s:.2f} ms" for by, s in facts["seconds"].items()}
    rows["images/s, at most"] = f"{facts['images_per_second']:,.0f}"
    for row in rows.items():
        made.add_row(*row)
    return made
