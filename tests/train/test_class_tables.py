"""Tables of classes that are spread over the devices; a run that is restarted on fewer devices."""

import re
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import traverse_util
from jax.sharding import AxisType

from dml_jax.backbones.weights import converted
from dml_jax.errors import ConfigError
from dml_jax.lab import hlo
from dml_jax.methods import baseline
from dml_jax.methods.contract import Method
from dml_jax.train import class_tables, step, warm_start
from dml_jax.train import experiment as experiments
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed import device_mesh
from dml_jax.train.experiment import Experiment
from dml_jax.train.step import TrainState, digest
from tests import toys
from tests.train.experiments import drawn, small

DEVICES = 8
CLASSES, DIM = 1000, 8  # not a multiple of anything that matters


def build(name: str, classes: int = CLASSES) -> Method:
    config = baseline.make_config(loss=name, embedding_dim=DIM)
    return baseline.build(config, toys.backbone(), toys.training_set(classes))


def jitted(method: Method, optimizer: optax.GradientTransformation, shapes: Any) -> Any:
    mesh = device_mesh.make()
    shardings = device_mesh.shardings(mesh, shapes, method.hooks.class_axis)
    update = step.build(method, optimizer)
    return jax.jit(
        update, donate_argnums=0, out_shardings=(shardings, device_mesh.replicated(mesh))
    )


def check_a_share_of_the_classes(build: Callable[[int], Method]) -> None:
    """Training is the same with all rows of the tables on each device, and with an eighth of
    them."""
    whole, optimizer = (
        build(CLASSES),
        optax.sgd(0.1, momentum=0.9),
    )  # Adam would enlarge small gradients' rounding
    batch = toys.batch(whole.hooks.views)
    parts = class_tables.spread(build, CLASSES, batch, device_mesh.make())
    initial = jax.jit(step.initial, static_argnums=(0, 1))
    state, padded = (
        initial(method, optimizer, jax.random.key(1), batch) for method in (whole, parts)
    )
    mesh = device_mesh.make()
    spread = device_mesh.place(mesh, padded, parts.hooks.class_axis)
    rows = [leaf for leaf in jax.tree.leaves(spread) if not leaf.is_fully_replicated]
    assert rows
    for leaf in rows:
        assert leaf.addressable_shards[0].data.size == leaf.size // 8
    run, run_parts = jax.jit(step.build(whole, optimizer)), jitted(parts, optimizer, padded)
    divided = device_mesh.shard_batch(mesh, *(np.asarray(field) for field in batch[:3]))
    for _ in range(3):
        state, terms = run(state, batch, jax.random.key(0))
        spread, spread_terms = run_parts(spread, divided, jax.random.key(0))
        assert float(spread_terms["loss"]) == pytest.approx(float(terms["loss"]), rel=1e-5)
    for own, (path, leaf) in zip(
        jax.tree.leaves(state.params),
        jax.tree_util.tree_leaves_with_path(spread.params),
        strict=True,
    ):
        axis = parts.hooks.class_axis(tuple(part.key for part in path))
        cut, rest = (leaf, leaf[:0]) if axis is None else jnp.split(leaf, [CLASSES], axis=axis)
        np.testing.assert_allclose(cut, own, rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(rest, 0)


@pytest.mark.parametrize(
    "name",
    [
        "cross_entropy",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("proxy_anchor", "arcface")),
    ],
)
def test_eight_devices_with_a_share_of_the_classes_are_one_with_all(name: str) -> None:
    check_a_share_of_the_classes(partial(build, name))


def check_a_million_classes(build: Callable[[int], Method]) -> None:
    """They take an eighth of the memory and little traffic, by the compiler's own figures; nothing
    is computed."""
    classes, optimizer = 1_000_000, optax.adam(1e-2)
    batch = jax.eval_shape(lambda: toys.batch(1, size=128, classes=4))
    method = class_tables.spread(build, classes, batch, device_mesh.make())
    shapes = jax.eval_shape(partial(step.initial, method, optimizer), jax.random.key(0), batch)
    mesh = device_mesh.make()
    layout = device_mesh.shardings(mesh, shapes, method.hooks.class_axis)
    state = jax.tree.map(
        lambda x, put: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=put), shapes, layout
    )
    images, *others = (
        jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=device_mesh.row_sharded(mesh, axis))
        for x, axis in zip(batch[:3], (1, 0, 0), strict=True)
    )
    compiled = (
        jitted(method, optimizer, shapes)
        .lower(state, type(batch)(images, *others), jax.random.key(0))
        .compile()
    )
    memory = compiled.memory_analysis()
    total = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    assert memory.argument_size_in_bytes < total / 7.9
    assert memory.alias_size_in_bytes > total / 8.1  # donated
    sizes = re.findall(
        r"= (\S+|\(.*?\)) (?:all-gather|all-reduce|collective-permute|all-to-all)\(",
        compiled.as_text(),
    )
    assert sizes
    for result in sizes:
        for shape in re.findall(r"[fs]\d+\[([\d,]*)\]", result):
            # At most the batch's similarities to itself, its embeddings, or the rows that padding
            # moves.
            assert np.prod([int(n) for n in shape.split(",") if n], dtype=int) <= 128 * 128, result


@pytest.mark.parametrize(
    "name",
    [
        "arcface",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("proxy_anchor", "cross_entropy")),
    ],
)
def test_a_million_classes_take_an_eighth_of_the_memory_and_little_traffic(name: str) -> None:
    check_a_million_classes(partial(build, name))


def test_each_device_draws_its_part_of_a_million_classes() -> None:
    """No device holds or sends a whole table, by the compiler's own figures."""
    classes, optimizer = 1_000_000, optax.adam(1e-2)
    batch = jax.eval_shape(lambda: toys.batch(1, size=128, classes=4))
    method = class_tables.spread(partial(build, "proxy_anchor"), classes, batch, device_mesh.make())
    initial = partial(step.initial, method, optimizer)
    shapes = jax.eval_shape(initial, jax.random.key(0), batch)
    layout = device_mesh.shardings(device_mesh.make(), shapes, method.hooks.class_axis)
    program = jax.jit(initial, out_shardings=layout, compiler_options=warm_start.UNOPTIMIZED)
    compiled = program.lower(jax.random.key(0), batch).compile()
    memory = compiled.memory_analysis()
    table = 4 * DIM * classes
    assert memory.temp_size_in_bytes + memory.output_size_in_bytes < table
    assert sum(row["bytes"] for row in hlo.collectives(compiled.as_text())) < table / 100


def test_weights_that_initialisation_reads(tmp_path: Path) -> None:
    """They are those of the file, and the tables are spread as without weights."""
    config = small(steps=2, shard_classes=True)
    state = drawn(experiments.build(config).template())
    variables = {"params": state.params["backbone"], "stats": state.model_state["backbone"]}
    read = traverse_util.flatten_dict(variables, sep="/")
    arrays = {f"backbone/{path}": value for path, value in read.items()}
    converted.write(tmp_path / "weights", arrays, {"architecture": asdict(config.backbone)})
    backbone = replace(config.backbone, pretrained=str(tmp_path / "weights"))
    found = warm_start.initial_state(experiments.build(replace(config, backbone=backbone)))
    assert found.params["loss"]["proxies"].addressable_shards[0].data.shape == (32, 8)
    loaded = {"params": found.params["backbone"], "stats": found.model_state["backbone"]}
    for path, value in traverse_util.flatten_dict(loaded, sep="/").items():
        assert value.is_fully_replicated
        np.testing.assert_array_equal(value, read[path])


def test_too_many_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(class_tables, "MULTIPLE", 12)
    with pytest.raises(
        ConfigError, match=r"train.shard_classes=true: the number of devices \(=8\) must divide 12"
    ):
        experiments.build(small(steps=1, shard_classes=True))


def updated(run: Experiment, state: TrainState) -> TrainState:
    start = int(state.step)
    with run.batches(start, start + 1) as batches:
        batch = run.device_batch(*next(batches))
    leaves, structure = jax.tree.flatten(state)
    return jax.tree.unflatten(structure, run.jitted_step(state)(leaves, batch, run.key)[0])


@pytest.mark.parametrize(
    ("shard_classes", "training"),
    [
        (True, False),
        *(pytest.param(spread, True, marks=pytest.mark.slow) for spread in (False, True)),
    ],
)
def test_eight_two_and_one_device(
    shard_classes: bool, training: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved: TrainState | None = None
    for count in (8, 2, 1):
        mesh = jax.make_mesh(
            (count,), (device_mesh.AXIS,), (AxisType.Auto,), devices=jax.devices()[:count]
        )
        monkeypatch.setattr(device_mesh, "make", lambda mesh=mesh: mesh)
        run = experiments.build(small(steps=3, shard_classes=shard_classes))
        store = Checkpoints(tmp_path, lambda run=run: run.template(), None, run={})
        found = store.restore()
        if saved is None:
            assert found is None
            random = device_mesh.place(mesh, drawn(run.template()), run.method.hooks.class_axis)
            state = warm_start.initial_state(run) if training else random
        else:
            state = found[0]
            assert digest(state) == digest(saved)
        for leaf in jax.tree.leaves(state):
            assert leaf.sharding.device_set == set(mesh.devices.flat)
        proxies = state.params["loss"]["proxies"]
        assert proxies.addressable_shards[0].data.size == proxies.size // (
            count if shard_classes else 1
        )
        saved = updated(run, state) if training else state._replace(step=state.step + 1)
        store.save("latest", saved, {})
        store.close()
