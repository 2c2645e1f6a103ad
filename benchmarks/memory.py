"""Memory of a training step on each device, as the compiler plans it: large batches in chunks, a million classes.

    python -m benchmarks.memory

Nothing is computed, so a machine with little memory can compile steps for large ones. The steps are those of
`train.chunks` and `train.shard_classes`; a minute each.
"""

import os

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0"

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, Mesh
from jax.stages import Lowered

from dml_jax.backbones import convolution, resnet
from dml_jax.methods import baseline
from dml_jax.methods.contract import Batch, Method, TrainingSet
from dml_jax.options.methods.losses import CLASSIFIERS
from dml_jax.train import chunks, class_tables, step
from dml_jax.train import mesh as meshes

BATCHES = ((64, 1), (128, 1), (4096, 64), (4096, 128))  # images, chunks
CLASSES = 1_000_000
LOSSES = ("proxy_anchor", "arcface", "cross_entropy")
SAMPLED = 0.1  # of the classes, `method.sample_classes`


def images(count: int, side: int, mesh: Mesh) -> Batch:
    """The shapes of a batch."""
    rows = meshes.row_sharded(mesh)
    labels = jax.ShapeDtypeStruct((count,), jnp.int32, sharding=rows)
    pixels = jax.ShapeDtypeStruct((1, count, side, side, 3), jnp.uint8, sharding=meshes.row_sharded(mesh, 1))
    return Batch(pixels, labels, labels)


def lowered(method: Method, batch: Batch, mesh: Mesh) -> Lowered:
    """A step with Adam, to be compiled."""
    optimizer = optax.adam(1e-4)
    shapes: Any = jax.eval_shape(partial(step.initial, method, optimizer), jax.random.key(0), batch)
    layout = meshes.shardings(mesh, shapes, method.class_axis)
    state = jax.tree.map(lambda x, put: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=put), shapes, layout)
    update = jax.jit(step.build(method, optimizer), donate_argnums=0, out_shardings=(layout, meshes.replicated(mesh)))
    return update.lower(state, batch, jax.random.key(0))


def planned(method: Method, batch: Batch, mesh: Mesh) -> str:
    """The cells "arguments | temporary" of a step, in MiB on each device."""
    memory = lowered(method, batch, mesh).compile().memory_analysis()
    assert memory is not None
    return f"{memory.argument_size_in_bytes >> 20:,} | {memory.temp_size_in_bytes >> 20:,}"


def first_devices(count: int) -> Mesh:
    """A mesh of some of the virtual devices."""
    return jax.make_mesh((count,), (meshes.AXIS,), (AxisType.Auto,), devices=jax.devices()[:count])


def main() -> None:
    """Prints two tables."""
    one, eight = first_devices(1), first_devices(8)
    print("| ResNet-50, 224², frozen batch norm | arguments, MiB | temporary, MiB |\n|---|--:|--:|")
    body = resnet.build(resnet.Config(freeze_bn=True))
    method = baseline.build(baseline.make_config(loss="multi_similarity", embedding_dim=512), body, TrainingSet(100, 1))
    with convolution.plain():  # the form that GPUs and TPUs compile
        for size, parts in BATCHES:
            cells = planned(chunks.chunked(method, parts), images(size, 224, one), one)
            print(f"| {size:,} images in {parts} chunks, 1 device | {cells} |", flush=True)
    print(f"\n| {CLASSES:,} classes × 512, batch 128, 8 devices | arguments, MiB | temporary, MiB |\n|---|--:|--:|")
    body = resnet.build(resnet.Config(block="basic", stem="small", depths=(1,), widths=(8,)))
    batch = images(128, 24, eight)
    for loss in LOSSES:

        def build(classes: int, loss: str = loss, part: float = 1.0) -> Method:
            config = baseline.make_config(loss=loss, embedding_dim=512, sample_classes=part)
            return baseline.build(config, body, TrainingSet(classes, 1))

        rows = {"": build(CLASSES), ", spread": class_tables.spread(build, CLASSES, batch)}
        if loss in CLASSIFIERS:
            sampled = partial(build, part=SAMPLED)
            rows[f", spread, {SAMPLED} of the classes"] = class_tables.spread(sampled, CLASSES, batch)
        for name, made in rows.items():
            print(f"| {loss}{name} | {planned(made, batch, eight)} |", flush=True)


if __name__ == "__main__":
    main()
