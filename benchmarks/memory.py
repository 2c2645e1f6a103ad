"""Memory of a training step on each device, as the compiler plans it: precision, large batches, a million classes.

    python -m benchmarks.memory

Nothing is computed, so a machine with little memory can compile steps for large ones. The steps are those of
`train.precision`, `backbone.remat`, `train.chunks` and `train.shard_classes`; a minute each.

XLA's compiler for CPUs computes bfloat16 convolutions in float32 and merges what remat computes twice, so its plans
show neither's effect on accelerators. "Kept" is what JAX hands from the forward to the backward pass, before any
compiler: it is the part of the temporary memory that grows with the batch.
"""

import os

os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "8"}
os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"

from functools import partial
from itertools import product
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AxisType, Mesh
from jax.stages import Lowered

from dml_jax.backbones import convolution, resnet
from dml_jax.methods import baseline
from dml_jax.methods.contract import Batch, Method, TrainingSet
from dml_jax.train import class_tables, step
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.model import in_bfloat16

SIZES = (64, 128)
BATCHES = ((64, 1), (128, 1), (4096, 64), (4096, 128))  # images, chunks
CLASSES = 1_000_000
LOSSES = ("proxy_anchor", "arcface", "cross_entropy")


def images(count: int, side: int, mesh: Mesh) -> Batch:
    """The shapes of a batch."""
    rows = meshes.row_sharded(mesh)
    labels = jax.ShapeDtypeStruct((count,), jnp.int32, sharding=rows)
    pixels = jax.ShapeDtypeStruct((1, count, side, side, 3), jnp.uint8, sharding=meshes.row_sharded(mesh, 1))
    return Batch(pixels, labels, labels)


def kept(method: Method, batch: Batch) -> int:
    """Bytes of all arrays that the backward pass gets from the forward pass, parameters included."""

    def forward(key: jax.Array, batch: Batch) -> Any:
        params, model_state = method.init(key, batch)
        objective = partial(step.loss, method, model_state=model_state, batch=batch, step=jnp.int32(0), key=key)
        return jax.vjp(objective, params, has_aux=True)[1]

    arrays = jax.tree.leaves(jax.eval_shape(forward, jax.random.key(0), batch))
    return sum(array.size * array.dtype.itemsize for array in arrays)


def lowered(method: Method, batch: Batch, mesh: Mesh) -> Lowered:
    """A step with Adam, to be compiled."""
    optimizer = optax.adam(1e-4)
    shapes: Any = jax.eval_shape(partial(step.initial, method, optimizer), jax.random.key(0), batch)
    layout = meshes.shardings(mesh, shapes, method.hooks.class_axis)
    state = jax.tree.map(lambda x, put: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=put), shapes, layout)
    update = jax.jit(step.build(method, optimizer), donate_argnums=0, out_shardings=(layout, meshes.replicated(mesh)))
    return update.lower(state, batch, jax.random.key(0))


def planned(method: Method, batch: Batch, mesh: Mesh, *, cost: bool = False) -> str:
    """The cells "arguments | temporary" of a step, in MiB on each device; and "GFLOP | GB" of its cost."""
    compiled = lowered(method, batch, mesh).compile()
    memory, costs = compiled.memory_analysis(), compiled.cost_analysis()
    assert memory is not None
    assert costs is not None
    cells = f"{memory.argument_size_in_bytes >> 20:,} | {memory.temp_size_in_bytes >> 20:,}"
    return f"{cells} | {costs['flops'] / 1e9:,.0f} | {costs['bytes accessed'] / 1e9:,.0f}" if cost else cells


def precisions(mesh: Mesh) -> None:
    """Prints a table of float32, bfloat16 and remat."""
    print("| ResNet-50, 224² | kept, MiB | arguments, MiB | temporary, MiB | GFLOP | GB accessed |")
    print("|---|--:|--:|--:|--:|--:|")
    for size, dtype, remat in product(SIZES, ("float32", "bfloat16"), (False, True)):
        body = resnet.build(resnet.Config(freeze_bn=True, dtype=dtype, remat=remat))  # type: ignore[arg-type]
        config = baseline.make_config(loss="multi_similarity", embedding_dim=512)
        method = baseline.build(config, body, TrainingSet(100, 1))
        if dtype == "bfloat16":
            method = in_bfloat16(method)
        batch = images(size, 224, mesh)
        cells = planned(method, batch, mesh, cost=True)
        name = f"{size} images, {dtype}{', remat' if remat else ''}"
        print(f"| {name} | {kept(method, batch) >> 20:,} | {cells} |", flush=True)


def first_devices(count: int) -> Mesh:
    """A mesh of some of the virtual devices."""
    return jax.make_mesh((count,), (meshes.AXIS,), (AxisType.Auto,), devices=jax.devices()[:count])


def main() -> None:
    """Prints three tables."""
    one, eight = first_devices(1), first_devices(8)
    with convolution.plain():  # the form that GPUs and TPUs compile
        precisions(one)
    print("\n| ResNet-50, 224², frozen batch norm | arguments, MiB | temporary, MiB |\n|---|--:|--:|")
    body = resnet.build(resnet.Config(freeze_bn=True))
    method = baseline.build(baseline.make_config(loss="multi_similarity", embedding_dim=512), body, TrainingSet(100, 1))
    with convolution.plain():
        for size, parts in BATCHES:
            cells = planned(step.chunked(method, parts), images(size, 224, one), one)
            print(f"| {size:,} images in {parts} chunks, 1 device | {cells} |", flush=True)
    print(f"\n| {CLASSES:,} classes × 512, batch 128, 8 devices | arguments, MiB | temporary, MiB |\n|---|--:|--:|")
    body = resnet.build(resnet.Config(block="basic", stem="small", depths=(1,), widths=(8,)))
    batch = images(128, 24, eight)
    for loss in LOSSES:

        def build(classes: int, loss: str = loss) -> Method:
            config = baseline.make_config(loss=loss, embedding_dim=512)
            return baseline.build(config, body, TrainingSet(classes, 1))

        rows = {"": build(CLASSES), ", spread": class_tables.spread(build, CLASSES, batch, eight)}
        for name, made in rows.items():
            print(f"| {loss}{name} | {planned(made, batch, eight)} |", flush=True)


if __name__ == "__main__":
    main()
