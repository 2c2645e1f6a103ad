"""What every method guarantees: one compilation, finite values, batch statistics, any number of devices, precision."""

import re
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from dml_jax.backbones.convolution import batches_over
from dml_jax.config import choices, plugin_module
from dml_jax.evaluation import metrics
from dml_jax.methods.contract import Aux, Method
from dml_jax.train import step
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed import device_mesh
from dml_jax.train.method_wrappers import chunked
from dml_jax.train.step import TrainState
from tests import toys
from tests.contract.cases import DATA, degenerate
from tests.contract.methods import KEY, OPTIMIZER, SMALL, computing_in, every_method, method, methods, started


def update(name: str, dtype: Any = jnp.float32) -> Any:
    return jitted_step(computing_in(name, dtype))


@cache
def jitted_step(made: Method) -> Any:
    return jax.jit(step.build(made, OPTIMIZER))


@cache
def outputs(name: str) -> Any:
    """(params, model_state, images of all views) -> (encoded images, embeddings of the first view) at test time."""
    made = method(name)

    def both(params: Any, model_state: Any, images: jax.Array) -> tuple[Any, jax.Array]:
        encoded, _ = made.encode(params, model_state, images, train=False)
        return encoded, made.embed(params, model_state, images[0])

    return jax.jit(both)


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def assert_finite(terms: dict[str, Any], tree: Any, note: str = "") -> None:
    assert all(np.isfinite(term) for term in terms.values()), (note, terms)
    assert all(np.isfinite(leaf).all() for leaf in leaves(tree)), note


def assert_equal_up_to_rounding(one: TrainState, other: TrainState) -> None:
    pairs = (leaves((state.params, state.model_state)) for state in (one, other))
    for a, b in zip(*pairs, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_every_module_of_methods_is_covered() -> None:
    assert {name.split(",")[0] for name in SMALL} == set(choices("method"))
    for name in choices("method"):
        module = plugin_module("method", name)
        assert module.Config.__dataclass_params__.frozen
        assert module.Config.__dataclass_fields__["name"].default == name


@every_method
def test_compiles_once_and_moves_every_group(name: str) -> None:
    made, run = method(name), update(name)
    after = state = started(name)
    for seed in range(3):
        after, terms = run(after, toys.batch(made.hooks.views, seed=seed), jax.random.key(seed))
    assert run._cache_size() == 1
    assert int(after.step) == 3
    assert all(np.ndim(term) == 0 and np.isfinite(term) for term in terms.values())
    means = (s.model_state["backbone"]["bn"]["mean"] for s in (after, state))
    assert not np.array_equal(*means)
    moved: dict[str, bool] = dict.fromkeys(made.groups, False)
    old = jax.tree_util.tree_leaves_with_path(state.params)
    for (path, before), now in zip(old, jax.tree.leaves(after.params), strict=True):
        group = made.group(tuple(part.key for part in path))
        moved[group] |= not np.array_equal(before, now)
    assert all(moved.values()), moved


@every_method
def test_batch_statistics_are_updated_in_training_and_used_at_test_time(name: str) -> None:
    made, run = method(name), update(name)
    batch, state = toys.batch(made.hooks.views), started(name)
    after, _ = run(state, batch, KEY)
    inputs = batch.images[0].reshape(-1, 2, 4, 2, 4, 3).transpose(0, 1, 3, 2, 4, 5) / 255
    seen = inputs.reshape(-1, 48) @ np.asarray(state.params["backbone"]["kernel"])
    mean = after.model_state["backbone"]["bn"]["mean"]
    np.testing.assert_allclose(mean, 0.1 * seen.mean(axis=0), rtol=1e-4, atol=1e-6)
    moved = jax.tree.map(lambda x: x + 1.0, after.model_state["backbone"])
    shifted = {**after.model_state, "backbone": moved}
    _, embeddings = outputs(name)(after.params, after.model_state, batch.images)
    assert not np.allclose(outputs(name)(after.params, shifted, batch.images)[1], embeddings)


@every_method
def test_rows_are_encoded_independently_and_logs_are_scalars(name: str) -> None:
    """What a loss in chunks relies on: `encode` sees one image at a time, `loss` sees the whole batch."""
    made, state = method(name), started(name)
    batch = toys.batch(made.hooks.views)
    found = outputs(name)(state.params, state.model_state, batch.images)
    assert all(len(leaf) == len(batch.labels) for leaf in jax.tree.leaves(found))
    images = np.array(batch.images)
    images[:, 5:] = 0
    others = outputs(name)(state.params, state.model_state, images)
    first = lambda tree: jax.tree.map(lambda x: x[:5], tree)  # noqa: E731
    equal = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(equal, first(found), first(others))

    def in_training(key: jax.Array) -> Any:
        given = state.params, state.model_state, batch.images
        encoded, model_state = made.encode(*given, train=True, key=key)
        return encoded, made.loss(state.params, model_state, encoded, batch, state.step, key)

    encoded, (value, aux) = jax.eval_shape(in_training, KEY)
    assert all(len(leaf) == len(batch.labels) for leaf in jax.tree.leaves(encoded))
    assert isinstance(aux, Aux)
    assert all(np.ndim(x) == 0 for x in (value, *aux.metrics.values()))
    assert jax.tree.structure(aux.model_state) == jax.tree.structure(state.model_state)


@every_method
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_degenerate_batches_stay_finite(name: str, dtype: Any) -> None:
    run = update(name, dtype)
    for kind, batch in degenerate(method(name).hooks.views).items():
        state, terms = run(started(name), batch, KEY)
        assert_finite(terms, state.params, kind)


# What may be computed with bfloat16 arrays: products, ReLUs, and whatever only moves values.
MOVES = {"convert", "broadcast_in_dim", "compare", "maximum", "select", "constant"}
MOVES |= {"transpose", "reshape"}


@every_method
def test_bfloat16_rounds_the_products_of_the_network_only(name: str) -> None:
    """Loss and gradient stay close, the state and all sums float32, and products of embeddings exact."""
    run, start = update(name, jnp.bfloat16), started(name)
    batch = toys.batch(method(name).hooks.views)
    after, terms = run(start, batch, KEY)
    exact, exact_terms = update(name)(start, batch, KEY)
    # bfloat16 rounds by up to u = 2^-8. Ten products in a row, forwards and backwards, of two
    # rounded operands each, change the gradient by up to 20 u.
    assert float(terms["loss"]) == pytest.approx(float(exact_terms["loss"]), rel=20 * 2**-8)
    flat = lambda state: np.concatenate([np.ravel(x) for x in leaves(state.params)])  # noqa: E731
    gradient, rounded = flat(exact) - flat(start), flat(after) - flat(start)
    assert 0 < np.linalg.norm(rounded - gradient) < 20 * 2**-8 * np.linalg.norm(gradient)
    floats = {leaf.dtype for leaf in leaves(after) if leaf.dtype.kind not in "iub"}
    assert floats == {np.dtype("float32")}

    # The program for GPUs, because CPUs have no such products and compute the same numbers in float32.
    text = run.trace(start, batch, KEY).lower(lowering_platforms=("cuda",)).as_text()
    lines = [line for line in text.splitlines() if "stablehlo." in line]
    named = [(re.findall(r"stablehlo\.(\w+)", line)[0], line) for line in lines]
    assert {op for op, line in named if "bf16" in line} <= MOVES | {"dot_general"}
    products = [line for op, line in named if op == "dot_general"]
    assert sum("bf16" in line for line in products) >= 3
    between_images = r"\(tensor<16(x16)?xf32>, tensor<16(x16)?xf32>\)"
    exact_products = [line for line in products if "bf16" not in line]
    others = [line for line in exact_products if not re.search(between_images, line)]
    assert all("HIGHEST" in line for line in others)


@every_method
def test_zero_vector_embeddings_are_finite(name: str) -> None:
    """With a backbone of zeros, every embedding is the bias of its layer or zero."""
    start, batch = started(name), toys.batch(method(name).hooks.views)
    blank = {**start.params, "backbone": jax.tree.map(np.zeros_like, start.params["backbone"])}
    state, terms = update(name)(start._replace(params=blank), batch, KEY)
    embeddings = outputs(name)(blank, start.model_state, batch.images)[1]
    assert_finite(terms, (state.params, embeddings))


@every_method
def test_eight_devices_are_one(name: str) -> None:
    made, state = method(name), started(name)
    batch = toys.batch(made.hooks.views)
    one, one_terms = update(name)(state, batch, KEY)
    mesh = Mesh(np.asarray(jax.devices()), (device_mesh.AXIS,), axis_types=(AxisType.Auto,))
    assert mesh.size == 8
    spread = device_mesh.shard_batch(mesh, *(np.asarray(field) for field in batch[:3]))
    with batches_over(mesh):
        run = jax.jit(step.build(made, OPTIMIZER))
        eight, eight_terms = run(device_mesh.place(mesh, state), spread, KEY)
    assert float(eight_terms["loss"]) == pytest.approx(float(one_terms["loss"]), rel=1e-6)
    assert_equal_up_to_rounding(one, eight)


def frozen(name: str) -> Method:
    """A method whose batch norm uses its running statistics in training."""
    made = method(name)

    def encode(*given: Any, train: bool, key: Any = None) -> Any:
        encoded, _ = made.encode(*given, train=False)
        if train:
            trained, _ = made.encode(*given, train=True, key=key)
            encoded = SMALL[name].frozen(encoded, trained)
        return encoded, given[1]

    return made._replace(encode=encode)


@methods("slow_chunks")
def test_chunks_on_eight_devices_are_one_batch_on_one(name: str) -> None:
    made, state = frozen(name), started(name)
    batch = toys.batch(made.hooks.views)
    whole, terms = jax.jit(step.build(made, OPTIMIZER))(state, batch, KEY)
    mesh = device_mesh.make()
    spread = device_mesh.shard_batch(mesh, *(np.asarray(field) for field in batch[:3]))
    run = jax.jit(step.build(chunked(made, 2), OPTIMIZER))
    parts, parts_terms = run(device_mesh.place(mesh, state), spread, KEY)
    for term, value in terms.items():
        assert float(parts_terms[term]) == pytest.approx(float(value), rel=1e-5), term
    assert_equal_up_to_rounding(whole, parts)


@every_method
def test_float64_agrees(name: str) -> None:
    batch = toys.batch(method(name).hooks.views)
    values = []
    for dtype in (jnp.float32, jnp.float64):
        run = update(name, dtype)
        with jax.enable_x64(dtype is jnp.float64):

            def cast(x: Any, dtype: Any = dtype) -> Any:
                return np.asarray(x, dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x

            state = jax.tree.map(cast, started(name))
            after, terms = run(state, batch, KEY)
            assert terms["loss"].dtype == dtype
            pairs = zip(leaves(after.params), leaves(state.params), strict=True)
            change = np.sqrt(sum(np.sum((new - old) ** 2) for new, old in pairs))
            values.append((float(terms["loss"]), float(change)))
    assert values[0][0] == pytest.approx(values[1][0], rel=1e-5)
    assert values[0][1] == pytest.approx(values[1][1], rel=1e-4)


@every_method
def test_state_survives_a_checkpoint(name: str, tmp_path: Path) -> None:
    state = started(name)._replace(step=jnp.asarray(5, jnp.int32))
    store = Checkpoints(tmp_path, lambda: started(name), pytest.fail, run={})
    store.save("latest", state, {})
    found = store.restore()
    store.close()
    assert jax.tree.structure(found[0]) == jax.tree.structure(state)
    for a, b in zip(leaves(found[0]), leaves(state), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@every_method
def test_learns_a_few_images(name: str) -> None:
    """MAP@R rises."""
    batch = toys.batch(method(name).hooks.views, classes=DATA.classes, seed=3)
    state = started(name)

    def map_at_r() -> float:
        embeddings = np.asarray(outputs(name)(state.params, state.model_state, batch.images)[1])
        np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, rtol=1e-5)
        return float(metrics.retrieval(embeddings, np.asarray(batch.labels), ks=(1,))["map@r"])

    losses, before = [], map_at_r()
    for _ in range(150):
        state, terms = update(name)(state, batch, KEY)
        losses.append(float(terms["loss"]))
    assert losses[-1] < losses[0]
    assert map_at_r() > before + 0.05
