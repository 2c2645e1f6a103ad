"""Compiles the programs of a configuration for absent devices and reads their costs.

XLA compiles for a device on any machine that has JAX's wheels for its platform.

A step takes at least the largest of three times at the vendor's peak figures: products, memory
traffic, and transfers between devices. The utilisation is at most the products' share of this time.

What these do not count may take longer: a GPU's time to start kernels (`LAUNCH`), and the time that
the host needs to call the program, measured here.
"""

import importlib.util
import math
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh
from rich.table import Table

from dml_jax.config import Config, plugin_module
from dml_jax.data import arrays, formats
from dml_jax.data.split import Split
from dml_jax.errors import ConfigError
from dml_jax.evaluation import kmeans
from dml_jax.evaluation._engine import counting_kernels, tiles
from dml_jax.lab import hlo
from dml_jax.train import experiment as experiments
from dml_jax.train.distributed import device_mesh
from dml_jax.train.distributed.device_mesh import AXIS
from dml_jax.train.experiment import Experiment

GIB = 2**30
Shape = jax.ShapeDtypeStruct
Lower = Callable[[], jax.stages.Lowered]
CHUNKS = (2, 4, 8, 16)  # values of train.chunks that are tried where a step does not fit
STEP = "training step"
LAUNCH = 2e-6  # seconds that a kernel takes even if it does nothing; assumed, to be measured
CALLS = 50  # timed calls of a program
Facts = dict[str, Any]
H100 = """
    gpu_device_info {
      threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152
      shared_memory_per_core: 233472 threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
      block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
      memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
      device_memory_size: 84942979072
      shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 minor: 0 }
      registers_per_core_limit: 65536 registers_per_block_limit: 65536
      driver_version: "12.9.0" runtime_version: "12.9.0" compile_time_toolkit_version: "12.9.0"
    }
    platform_name: "CUDA" dnn_version_info { major: 9 minor: 8 patch: 0 }
    runtime_version { major: 12 minor: 9 patch: 0 } device_description_str: "NVIDIA H100 80GB HBM3"
"""


class Chip(NamedTuple):
    """The vendor's peak figures of one device, per second and in bytes."""

    flops: dict[str, float]  # dense products by precision
    bandwidth: float  # memory
    memory: int
    network: float  # to the other devices of a host, in one direction


class Topology(NamedTuple):
    """Devices to compile for."""

    name: str
    platform: str  # "cuda" or "tpu"
    mesh: Mesh
    chip: Chip
    options: dict[str, bool]  # compiler


CHIPS = {
    "h100": Chip(
        {"float32": 67e12, "tensorfloat32": 494e12, "bfloat16": 989e12},
        *(3.35e12, 84_942_979_072, 450e9),
    ),
    # A product of float32 takes six passes of bfloat16.
    "v5e": Chip({"float32": 197e12 / 6, "bfloat16": 197e12}, 819e9, 16 * 2**30, 200e9),
}
DEVICE_KINDS = {"h100": "h100", "v5 lite": "v5e"}  # in JAX's names -> key of CHIPS
WHEELS = {
    "h100": ("jax_cuda12_plugin", "requirements-cuda.txt"),
    "v5e": ("libtpu", "requirements-tpu.txt"),
}
KNOWN = "h100:N or h100:HOSTSxN (GPUs of a host), v5e:2x2, v5e:2x4, v5e:4x4, v5e:8x8 or v5e:16x16"


def find_chip(device_kind: str) -> Chip | None:
    """The figures of a device by its kind in JAX, if they are known."""
    keys = (key for part, key in DEVICE_KINDS.items() if part in device_kind.lower())
    return next((CHIPS[key] for key in keys), None)


def find_topology(name: str) -> Topology:
    """The devices that a name such as "h100:8", "h100:2x8" or "v5e:4x4" stands for.

    Raises ConfigError if the name is unknown or the wheels of its platform are not installed.
    """
    found = re.fullmatch(
        r"(h100):(?:([1-9]\d{0,3})x)?([1-9]\d{0,2})|(v5e):(2x2|2x4|4x4|8x8|16x16)", name
    )
    if found is None:
        raise ConfigError(f"--topology={name}: is unknown; give {KNOWN}")
    kind = found[1] or found[4]
    module, requirements = WHEELS[kind]
    if importlib.util.find_spec(module) is None:
        remedy = f"pip install -r {requirements}"
        raise ConfigError(f"--topology={name}: JAX cannot compile for it; {remedy}")
    options: dict[str, bool] = {}
    described: dict[str, str] = {"topology_name": name}
    platform = "cuda" if kind == "h100" else "tpu"
    if kind == "h100":
        shape = f"{found[2] or 1}x1x{found[3]}"
        described = {"topology_name": "any", "topology": shape, "target_config": H100}
        # Without a device to measure them on, Triton finds no sizes for the tiles of some products.
        options = {"xla_gpu_enable_triton_gemm": False}
    else:  # there is no metadata server to ask for the host's place in its TPU pod
        os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")
    devices = topologies.get_topology_desc(platform=platform, **described).devices
    mesh = Mesh(np.array(devices), (AXIS,), axis_types=(AxisType.Auto,))
    return Topology(name, platform, mesh, CHIPS[kind], options)


def programs(
    config: Config, topology: Topology, announce: Callable[[str], None]
) -> dict[str, Facts]:
    """The facts of the training step, the embedding and the evaluation programs, by name.

    Raises ConfigError if the batch cannot be divided among the devices, the size of a missing data
    set is unknown, or the step needs more memory than a device has.
    """
    experiment = describe(config, topology)
    found = {}
    for name, lower in programs_of(experiment):
        announce(f"compiling {name}")
        started = time.monotonic()
        found[name] = compiled(lower, topology)
        found[name]["seconds_to_compile"] = round(time.monotonic() - started, 1)
        if name == STEP:
            _check_memory(config, topology, found[name], announce)
            found[name] |= bound(experiment, topology, found[name])
    return found


def describe(config: Config, topology: Topology) -> Experiment:
    """The experiment of a configuration on a topology, with random weights and blank images."""
    config = replace(config, backbone=replace(config.backbone, pretrained="none"), init_from="")
    if getattr(config.method, "teacher", ""):
        raise ConfigError("method.teacher: a step that needs a trained model cannot be compiled")
    recipe = getattr(plugin_module("data", config.data.name), "RECIPE", None)
    if recipe is None or recipe.counts is None:
        splits = formats.load(config.data)
    else:
        splits = {name: _blank_split(config, *sizes) for name, sizes in recipe.counts.items()}
    return experiments.build(config, splits, topology.mesh)


def _blank_split(config: Config, images: int, classes: int) -> Split:
    side = config.data.resize or config.data.image_size or 256

    def blank(index: int, rng: np.random.Generator | None) -> np.ndarray:
        return np.zeros((side, side, 3), np.uint8)

    return Split(np.arange(images) % classes, range(images), blank, range(classes))  # type: ignore[arg-type]


def arguments(experiment: Experiment) -> tuple[Any, Any, Any]:
    """Shapes of the state, the batch and the key of the training step, with their shardings."""

    def rows(array: Any) -> Shape:
        axis = 1 if array.ndim > 1 else 0  # images: [views, B, …]
        return Shape(array.shape, array.dtype, sharding=device_mesh.row_sharded(mesh, axis))

    mesh, key = experiment.mesh, experiment.key
    replicated_key = Shape(key.shape, key.dtype, sharding=device_mesh.replicated(mesh))
    return experiment.template(), jax.tree.map(rows, experiment.example_batch()), replicated_key


def programs_of(experiment: Experiment) -> Iterator[tuple[str, Lower]]:
    """Yields the name of each program and a function that lowers it."""
    state, batch, key = arguments(experiment)
    yield STEP, partial(experiment.jitted_step(state).lower, jax.tree.leaves(state), batch, key)

    mesh, method, test = experiment.mesh, experiment.method, experiment.splits["test"]
    embedder = experiment.embedder(method.embed)
    one = arrays.blank(experiment.shape)
    pixels = (embedder.batch_size, *one.shape)
    images = Shape(pixels, one.dtype, sharding=device_mesh.row_sharded(mesh))
    variables = state.params, state.model_state
    yield "embedding", partial(embedder.on_all_devices.lower, *variables, images)

    count, classes = len(test.labels), len(test.classes)
    width = jax.eval_shape(method.embed, *variables, images).shape[1]
    yield from _retrieval_programs(mesh, count, classes, width)

    # k-means runs on one device of each process.
    one_device = partial(Shape, sharding=jax.sharding.SingleDeviceSharding(mesh.devices.flat[0]))
    points = one_device((count, width), np.float32)
    centers = one_device((classes, width), np.float32)
    yield "clustering", partial(kmeans.lloyd.lower, points, centers, 20, scatter=False)


def _retrieval_programs(
    mesh: Mesh, count: int, classes: int, width: int
) -> Iterator[tuple[str, Lower]]:
    """The products of two tiles of `count` embeddings [., width], and the counting of their ranks.

    Its arguments are described in `counting_kernels`: n devices multiply n pairs of m tiles of T
    rows, whose queries have up to R relevant rows.
    """
    n, size = mesh.size, tiles.choose_tile_size(count, mesh)
    m = -(-count // size)
    r = min(-(-count // classes), 16)
    everywhere = partial(Shape, sharding=device_mesh.replicated(mesh))
    divided = partial(Shape, sharding=device_mesh.row_sharded(mesh))

    rows = everywhere((m, size, width), np.float32)
    pairs = divided((n, 2), np.int32)
    product = partial(tiles.product.lower, rows, rows, pairs, mesh, as_keys=True)
    yield "retrieval, products", product

    make_side: Any = counting_kernels.Side  # typed for arrays, here shapes
    side = make_side(
        first=everywhere((m,), np.int32),
        indices=everywhere((m, size), np.int32),
        positions=everywhere((m, r + 1, size), np.int32),
        thresholds=everywhere((m, r, size), np.int32),
        ties=everywhere((m, r, size), np.int32),
    )
    keys = divided((n, size, size), np.int32)
    sums = divided((n, m, r, size), np.int32)
    counter = counting_kernels.make_counter(2 if r % 2 == 0 else 1, False)
    accumulate: Any = counting_kernels.accumulate.lower
    both = (side, side), (sums, sums)
    yield "retrieval, counting", partial(accumulate, keys, *both, pairs, pairs, mesh, counter)


def compiled(lower: Lower, topology: Topology) -> Facts:
    """Memory in bytes and operations of the optimised program on one device."""
    try:
        program = lower().compile(compiler_options=dict(topology.options))
    except jax.errors.JaxRuntimeError as error:
        if not str(error).startswith("RESOURCE_EXHAUSTED"):
            raise
        used = re.search(r"Used ([\d.]+)([MG]) of", str(error))
        size = float(used[1]) * {"M": 2**20, "G": GIB}[used[2]] if used else float("inf")
        return {"memory": {"needed": size}}
    sizes: Any = program.memory_analysis()
    arguments, temporary = sizes.argument_size_in_bytes, sizes.temp_size_in_bytes
    needed = arguments + temporary + sizes.output_size_in_bytes - sizes.alias_size_in_bytes
    text = program.as_text() or ""
    found = {"launches": hlo.launches(text)} if topology.platform == "cuda" else {}
    return found | {
        "memory": {"arguments": arguments, "temporary": temporary, "needed": needed},
        "traffic": hlo.traffic(text),
        "collectives": hlo.collectives(text),
        "products": hlo.products(text),
        "copies": hlo.copies(text),
    }


def _check_memory(
    config: Config, topology: Topology, found: Facts, announce: Callable[[str], None]
) -> None:
    """Raises ConfigError if the step does not fit, with the first number of chunks that does."""
    available, needed = topology.chip.memory, found["memory"]["needed"]
    if needed <= available:
        return
    remedy = "give a smaller data.batch_size, or more devices"
    for chunks in CHUNKS:
        if chunks <= config.train.chunks or config.data.batch_size % (chunks * topology.mesh.size):
            continue
        announce(f"needs {needed / GIB:.1f} GiB; compiling with train.chunks={chunks}")
        chunked = replace(config, train=replace(config.train, chunks=chunks))
        try:
            smaller = describe(chunked, topology)
        except ConfigError:  # batch norm needs the whole batch
            break
        size = compiled(next(iter(programs_of(smaller)))[1], topology)["memory"]["needed"]
        if size <= available:
            remedy = f"train.chunks={chunks} needs {size / GIB:.1f}"
            break
    sizes = f"{needed / GIB:.1f} GiB of the {available / GIB:.1f} of {topology.name}"
    raise ConfigError(
        f"data.batch_size={config.data.batch_size}: the training step needs {sizes}; {remedy}"
    )


def bound(experiment: Experiment, topology: Topology, found: Facts) -> Facts:
    """FLOPs, memory by kind, and the least time of a training step."""
    chip, devices = topology.chip, experiment.mesh.size
    state, batch, key = arguments(experiment)
    update, leaves = experiment.jitted_step(state), jax.tree.leaves(state)
    flops = hlo.flops(update, leaves, batch, key, platform=topology.platform)
    precision = experiment.config.train.precision
    sent = sum(c["bytes"] * (1 + (c["operation"] == "all-reduce")) for c in found["collectives"])
    seconds = {
        "compute": flops / devices / chip.flops[precision],
        "memory": found["traffic"] / chip.bandwidth,
        "network": sent * (devices - 1) / devices / chip.network,
    }
    limit = max(seconds, key=lambda name: seconds[name])
    images = experiment.config.data.batch_size * experiment.method.hooks.views
    kernels = sum(found.get("launches", {}).get("kinds", {}).values())
    return {
        "host_seconds": host_seconds(len(jax.tree.leaves(state))),
        "launch_seconds": LAUNCH * kernels,
        "memory_by_kind": {
            "parameters": _bytes(state.params),
            "optimizer": _bytes(state.opt_state),
            "model state": _bytes(state.model_state),
            "activations": found["memory"]["temporary"],
        },
        "flops": flops,
        "precision": precision,
        "seconds": seconds,
        "bound": {"by": limit, "seconds": seconds[limit]},
        "utilisation": seconds["compute"] / seconds[limit],
        "images_per_second": images / seconds[limit],
    }


def host_seconds(arrays: int) -> float:
    """CPU time in which this thread calls a program with so many arrays as arguments and results.

    The least of several measurements; on any platform, the call hands the arrays over alike.
    """
    program = jax.jit(lambda values: values, donate_argnums=0)
    values = program([jax.device_put(np.zeros((), np.float32)) for _ in range(arrays)])
    found = []
    for _ in range(5):
        start = time.thread_time()
        for _ in range(CALLS):
            values = program(values)
        found.append((time.thread_time() - start) / CALLS)
    return min(found)


def _bytes(tree: Any) -> int:
    """Bytes of the arrays of a tree on one device."""
    return sum(
        math.prod(leaf.sharding.shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for leaf in jax.tree.leaves(tree)
    )


def table(title: str, found: dict[str, Facts], chip: Chip) -> Table:
    """The facts of `programs`, one column for each program."""
    caption = "bounds are for the vendor's peak figures; no run is faster"
    made = Table("a device", *found, title=title, caption=caption)
    columns = [_column(facts, chip) for facts in found.values()]
    for name in columns[0]:  # the training step has all rows
        made.add_row(name, *(column.get(name, "") for column in columns))
    return made


def _column(facts: Facts, chip: Chip) -> dict[str, str]:
    lines = {name: _size(count) for name, count in facts.get("memory_by_kind", {}).items()}
    lines[f"memory, of {_size(chip.memory)}"] = _size(facts["memory"]["needed"])
    lines["memory traffic"] = _size(facts["traffic"])
    lines["transposes, copies"] = f"{facts['copies']['count']}, {_size(facts['copies']['bytes'])}"
    lines["products"] = "\n".join(
        f"{p['count']} {p['operation']} {p['type']} {p['precision']}" for p in facts["products"]
    )
    lines["collectives"] = "\n".join(
        f"{c['count']} {c['operation']} {c['type']} {_size(c['bytes'])}"
        for c in facts["collectives"]
    )
    if "launches" in facts:
        launches = facts["launches"]
        kinds = launches["kinds"]
        together = f"{launches['in graphs']} in {launches['graphs']} CUDA graphs"
        whole = f"{launches['with convolutions']['in graphs']} with convolutions"
        counts = "\n".join(f"{count} {kind}" for kind, count in kinds.items())
        lines["launches"] = f"{sum(kinds.values())}, {together}, {whole}\n{counts}"
    if "bound" in facts:
        lines["FLOPs, all devices"] = f"{facts['flops']:.3g}"
        for kind, seconds in facts["seconds"].items():
            lines[f"{kind} takes"] = f"{1000 * seconds:.2f} ms"
        lines["a step takes at least"] = f"{1000 * facts['bound']['seconds']:.2f} ms"
        if facts["launch_seconds"]:
            lines["launches take about"] = f"{1000 * facts['launch_seconds']:.2f} ms"
        lines["a call takes this CPU"] = f"{1000 * facts['host_seconds']:.2f} ms"
        lines["utilisation, at most"] = f"{facts['utilisation']:.0%}"
        lines["images/s, at most"] = f"{facts['images_per_second']:,.0f}"
    lines["compiled in"] = f"{facts['seconds_to_compile']:.0f} s"
    return lines


def _size(count: float) -> str:
    return f"{count / GIB:.2f} GiB" if count >= GIB / 10 else f"{count / 2**20:.2f} MiB"
