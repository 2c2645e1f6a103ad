"""What every method guarantees: one compilation, finite values, batch statistics, any number of devices, precision."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, Mesh

from dml_jax import config as configs
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.convolution import batches_over
from dml_jax.evaluation import metrics
from dml_jax.losses.mining import Triplets
from dml_jax.methods import baseline, crt, diva, group_loss, hist, mpn, student
from dml_jax.methods.contract import Aux, Batch, Method, TrainingSet, teaching
from dml_jax.train import step
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.model import computed_in
from dml_jax.train.step import TrainState, chunked
from tests import toys

DATA = TrainingSet(classes=8, images=64)
DIVA = diva.Config(embedding_dim=8, queue_batches=2, psi_dim=8, rho=(1.0,), temperature=0.1)
INSTANCES = replace(DIVA, selfsimilarity="instance")


def with_teacher(body: Backbone) -> Method:
    """A student of an MPN with random weights."""
    teacher = mpn.build(mpn.Config(embedding_dim=8, heads=2), body, DATA)
    config = student.Config(teacher="an MPN", kind="imitation", embedding_dim=8)
    made = student.build(config, body, DATA)
    teach = jax.tree_util.Partial(teaching(teacher), *jax.jit(teacher.init)(jax.random.key(2), toys.batch(1)))

    def loss(params: Any, model_state: Any, encoded: Any, batch: Batch, count: jax.Array, key: jax.Array) -> Any:
        return made.loss(params, model_state, encoded, batch._replace(teacher=teach), count, key)

    return made._replace(loss=loss)


METHODS: dict[str, Callable[..., Method]] = {
    "mpn": lambda body: mpn.build(mpn.Config(embedding_dim=8, heads=2, layers=2, dropout=0.0), body, DATA),
    "hist": lambda body: hist.build(hist.Config(embedding_dim=8, hidden_dim=8), body, DATA),
    "crt": lambda body: crt.build(crt.Config(embedding_dims=(8, 12), prototypes=(4, 4), hidden_dim=8), body, DATA),
    "diva": lambda body: diva.build(DIVA, body, DATA),
    "diva, instances": lambda body: diva.build(INSTANCES, body, DATA),
    "baseline": lambda body: baseline.build(baseline.make_config(embedding_dim=8), body, DATA),
    "student": with_teacher,
    "group_loss": lambda body: group_loss.build(group_loss.Config(embedding_dim=8, temperature=4.0), body, DATA),
}
LONG = ("diva, instances", "student")  # run with the slow tests
every_method = pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in LONG else []) for name in METHODS]
)
# Columns of the discriminative task; that of single images drives the images of a class apart.
OF_CLASSES = {"diva, instances": slice(INSTANCES.embedding_dim)}
KEY = 0


def given(key: jax.Array, embeddings: Any, batch: Batch) -> dict[str, Triplets]:
    """Triplets without random draws, which differ between float32 and float64."""
    anchors = jnp.arange(batch.labels.shape[0])
    chosen = Triplets(anchors, jnp.roll(anchors, 1), jnp.roll(anchors, 5), jnp.ones_like(anchors, bool))
    return dict.fromkeys(("discriminative", "shared", "intra"), chosen)


WITHOUT_DRAWS = {
    "diva": lambda body: diva.build(DIVA, body, DATA, miner=given),
    "diva, instances": lambda body: diva.build(INSTANCES, body, DATA, miner=given),
}
UNDRAWN = "{} without draws"


@cache
def method(name: str, dtype: Any = None) -> Method:
    made = METHODS | {UNDRAWN.format(name): build for name, build in WITHOUT_DRAWS.items()}
    built = made[name](toys.backbone(dtype=dtype))
    return computed_in(built, "bfloat16" if dtype is jnp.bfloat16 else "float32")


@cache
def initial(made: Method, size: int) -> tuple[Any, Any]:
    """(params, model_state) before the first step, for batches of a size; read-only, as tests share them."""
    batch = toys.batch(made.hooks.views, size=size)
    params, model_state = jax.jit(made.init)(jax.random.key(1), batch)
    return params, made.hooks.fill(params, model_state, iter([batch] * 4)) if made.hooks.fill else model_state


def started(made: Method, optimizer: optax.GradientTransformation, batch: Batch) -> TrainState:
    params, model_state = initial(made, len(batch.labels))
    return TrainState(jnp.zeros((), jnp.int32), params, model_state, optimizer.init(params))


@cache
def update(name: str, dtype: Any = None) -> Any:
    """One step of SGD, which, unlike Adam, shows gradients that are wrong by a factor."""
    return jax.jit(step.build(method(name, dtype), optax.sgd(0.01)))


@cache
def embed(name: str) -> Any:
    return jax.jit(method(name).embed)


def leaves(tree: Any) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]


def test_every_module_of_methods_is_covered() -> None:
    assert {name.split(",")[0] for name in METHODS} == set(configs.choices("method"))
    for name in configs.choices("method"):
        module = configs.module("method", name)
        assert module.Config.__dataclass_params__.frozen
        assert module.Config.__dataclass_fields__["name"].default == name


@every_method
def test_compiles_once_and_moves_every_group(name: str) -> None:
    made, run = method(name), update(name)
    first = toys.batch(made.hooks.views)
    state = started(made, optax.sgd(0.01), first)
    after, _ = run(state, first, jax.random.key(KEY))
    for seed in (1, 2):
        after, terms = run(after, toys.batch(made.hooks.views, seed=seed), jax.random.key(seed))
    assert run._cache_size() == 1
    assert int(after.step) == 3
    assert all(np.ndim(term) == 0 and np.isfinite(term) for term in terms.values())
    assert not np.array_equal(after.model_state["backbone"]["bn"]["mean"], state.model_state["backbone"]["bn"]["mean"])
    moved: dict[str, bool] = dict.fromkeys(made.groups, False)
    old = jax.tree_util.tree_leaves_with_path(state.params)
    for (path, before), now in zip(old, jax.tree.leaves(after.params), strict=True):
        group = made.group(tuple(part.key for part in path))
        moved[group] |= not np.array_equal(before, now)
    assert all(moved.values()), moved


@every_method
def test_batch_statistics_are_updated_in_training_and_used_at_test_time(name: str) -> None:
    made, run = method(name), update(name)
    batch = toys.batch(made.hooks.views)
    state = started(made, optax.sgd(0.01), batch)
    after, _ = run(state, batch, jax.random.key(KEY))
    inputs = batch.images[0].reshape(len(batch.labels), 2, 4, 2, 4, 3).transpose(0, 1, 3, 2, 4, 5) / 255
    seen = inputs.reshape(-1, 48) @ np.asarray(state.params["backbone"]["kernel"])
    np.testing.assert_allclose(
        after.model_state["backbone"]["bn"]["mean"], 0.1 * seen.mean(axis=0), rtol=1e-4, atol=1e-6
    )
    shifted = {**after.model_state, "backbone": jax.tree.map(lambda x: x + 1.0, after.model_state["backbone"])}
    others = batch.images[0].at[1:].set(0)
    embeddings = embed(name)(after.params, after.model_state, batch.images[0])
    alone = embed(name)(after.params, after.model_state, others)  # a row does not depend on the others
    np.testing.assert_allclose(embeddings[:1], alone[:1], rtol=1e-5, atol=1e-6)
    assert not np.allclose(embed(name)(after.params, shifted, batch.images[0]), embeddings)


@every_method
def test_rows_are_encoded_independently_and_logs_are_scalars(name: str) -> None:
    """What a loss in chunks relies on: `encode` sees one image at a time, `loss` sees the whole batch."""
    made = method(name)
    batch = toys.batch(made.hooks.views)
    state = started(made, optax.sgd(0.01), batch)
    encode = jax.jit(partial(made.encode, train=False))
    encoded, _ = encode(state.params, state.model_state, batch.images)
    assert all(len(leaf) == len(batch.labels) for leaf in jax.tree.leaves(encoded))
    others, _ = encode(state.params, state.model_state, batch.images.at[:, 5:].set(0))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a[:5], b[:5], rtol=1e-5, atol=1e-6), encoded, others)

    def in_training(key: jax.Array) -> Any:
        encoded, model_state = made.encode(state.params, state.model_state, batch.images, train=True, key=key)
        return encoded, made.loss(state.params, model_state, encoded, batch, state.step, key)

    encoded, (value, aux) = jax.eval_shape(in_training, jax.random.key(KEY))
    assert all(len(leaf) == len(batch.labels) for leaf in jax.tree.leaves(encoded))
    assert isinstance(aux, Aux)
    assert all(np.ndim(x) == 0 for x in (value, *aux.metrics.values()))
    assert jax.tree.structure(aux.model_state) == jax.tree.structure(state.model_state)


def degenerate(views: int) -> dict[str, Batch]:
    usual = toys.batch(views)
    size = usual.labels.shape[0]
    same = jnp.broadcast_to(usual.images[:, :1], usual.images.shape)
    return {
        "duplicates": usual._replace(images=same),
        "zero images": usual._replace(images=jnp.zeros_like(usual.images)),
        "one class": usual._replace(labels=jnp.zeros_like(usual.labels)),
        "one class of duplicates": usual._replace(images=same, labels=jnp.zeros_like(usual.labels)),
        "nearly singletons": usual._replace(labels=jnp.arange(size, dtype=jnp.int32) % DATA.classes),
        "opposite": usual._replace(
            images=jnp.where((jnp.arange(size) % 2 == 0)[None, :, None, None, None], same, 255 - same)
        ),
    }


@every_method
@pytest.mark.parametrize("dtype", [None, jnp.bfloat16], ids=["float32", "bfloat16"])
def test_degenerate_batches_stay_finite(name: str, dtype: Any) -> None:
    made, run = method(name, dtype), update(name, dtype)
    usual = toys.batch(made.hooks.views)
    start = started(made, optax.sgd(0.01), usual)
    for kind, batch in degenerate(made.hooks.views).items():
        state, terms = run(start, batch, jax.random.key(KEY))
        assert all(np.isfinite(term) for term in terms.values()), (kind, terms)
        assert all(np.isfinite(leaf).all() for leaf in leaves(state.params)), kind


# What may be computed with bfloat16 arrays: products, ReLUs, and whatever only moves values.
MOVES = {"convert", "broadcast_in_dim", "compare", "maximum", "select", "constant", "transpose", "reshape"}


@every_method
def test_bfloat16_rounds_the_products_of_the_network_only(name: str) -> None:
    """Loss and gradient stay close, the state and all sums float32, and products of embeddings exact."""
    made, run = method(name, jnp.bfloat16), update(name, jnp.bfloat16)
    batch = toys.batch(made.hooks.views)
    start = started(made, optax.sgd(0.01), batch)
    after, terms = run(start, batch, jax.random.key(KEY))
    exact, exact_terms = update(name)(start, batch, jax.random.key(KEY))
    # bfloat16 rounds by up to u = 2^-8. Ten products in a row, forwards and backwards, of two rounded operands each,
    # change the gradient by up to 20 u.
    assert float(terms["loss"]) == pytest.approx(float(exact_terms["loss"]), rel=20 * 2**-8)
    step_of = [np.concatenate([np.ravel(x) for x in leaves(s.params)]) for s in (start, exact, after)]
    gradient, rounded = step_of[1] - step_of[0], step_of[2] - step_of[0]
    assert 0 < np.linalg.norm(rounded - gradient) < 20 * 2**-8 * np.linalg.norm(gradient)
    assert {leaf.dtype for leaf in leaves(after) if leaf.dtype.kind not in "iub"} == {np.dtype("float32")}

    # Of the program for GPUs, because CPUs have no such products and compute the same numbers in float32.
    text = run.trace(start, batch, jax.random.key(KEY)).lower(lowering_platforms=("cuda",)).as_text()
    lines = [line for line in text.splitlines() if "stablehlo." in line]
    named = [(re.findall(r"stablehlo\.(\w+)", line)[0], line) for line in lines]
    assert {op for op, line in named if "bf16" in line} <= MOVES | {"dot_general"}
    products = [line for op, line in named if op == "dot_general"]
    assert sum("bf16" in line for line in products) >= 3
    between_images = r"\(tensor<16(x16)?xf32>, tensor<16(x16)?xf32>\)"
    others = [line for line in products if "bf16" not in line and not re.search(between_images, line)]
    assert all("HIGHEST" in line for line in others)


@every_method
def test_zero_vector_embeddings_are_finite(name: str) -> None:
    """With a backbone of zeros, every embedding is the bias of its layer or zero."""
    made, run = method(name), update(name)
    usual = toys.batch(made.hooks.views)
    start = started(made, optax.sgd(0.01), usual)
    blank = {key: jax.tree.map(jnp.zeros_like, start.params[key]) for key in ("backbone",)}
    state, terms = run(start._replace(params=start.params | blank), usual, jax.random.key(KEY))
    assert all(np.isfinite(term) for term in terms.values()), terms
    assert all(np.isfinite(leaf).all() for leaf in leaves(state.params))
    assert np.isfinite(embed(name)(start.params | blank, start.model_state, usual.images[0])).all()


@every_method
def test_eight_devices_are_one(name: str) -> None:
    made = method(name)
    batch = toys.batch(made.hooks.views)
    state = started(made, optax.sgd(0.01), batch)
    one, one_terms = update(name)(state, batch, jax.random.key(KEY))
    mesh = Mesh(np.asarray(jax.devices()), (meshes.AXIS,), axis_types=(AxisType.Auto,))
    assert mesh.size == 8
    spread = meshes.shard_batch(mesh, *(np.asarray(field) for field in batch[:3]))
    with batches_over(mesh):
        run = jax.jit(step.build(made, optax.sgd(0.01)))
        eight, eight_terms = run(meshes.place(mesh, state), spread, jax.random.key(KEY))
    assert float(eight_terms["loss"]) == pytest.approx(float(one_terms["loss"]), rel=1e-6)
    assert float(eight_terms["grad_norm"]) == pytest.approx(float(one_terms["grad_norm"]), rel=1e-5)
    for a, b in zip(leaves((one.params, one.model_state)), leaves((eight.params, eight.model_state)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def frozen(name: str) -> Method:
    """A method whose batch norm uses its running statistics in training."""
    made = method(name)

    def encode(params: Any, model_state: Any, images: jax.Array, *, train: bool, key: Any = None) -> Any:
        encoded, _ = made.encode(params, model_state, images, train=False)
        if train and name == "diva":
            encoded = encoded._replace(keys=made.encode(params, model_state, images, train=True, key=key)[0].keys)
        return encoded, model_state

    return made._replace(encode=encode)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("hist", "crt") else [pytest.mark.slow]) for name in METHODS]
)
def test_chunks_on_eight_devices_are_one_batch_on_one(name: str) -> None:
    made, optimizer = frozen(name), optax.sgd(0.01)
    batch = toys.batch(made.hooks.views)
    state = started(made, optimizer, batch)
    whole, terms = jax.jit(step.build(made, optimizer))(state, batch, jax.random.key(KEY))
    mesh = meshes.make()
    spread = meshes.shard_batch(mesh, *(np.asarray(field) for field in batch[:3]))
    run = jax.jit(step.build(chunked(made, 2), optimizer))
    parts, parts_terms = run(meshes.place(mesh, state), spread, jax.random.key(KEY))
    for term, value in terms.items():
        assert float(parts_terms[term]) == pytest.approx(float(value), rel=1e-5), term
    for a, b in zip(leaves((whole.params, whole.model_state)), leaves((parts.params, parts.model_state)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


@every_method
def test_float64_agrees(name: str) -> None:
    name = UNDRAWN.format(name) if name in WITHOUT_DRAWS else name
    made, run = method(name), update(name)
    batch = toys.batch(made.hooks.views)
    start = started(made, optax.sgd(0.01), batch)
    values = []
    for double in (False, True):
        with jax.enable_x64(double):
            dtype = jnp.float64 if double else jnp.float32
            cast = lambda x, dtype=dtype: jnp.asarray(x, dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x  # noqa: E731
            _, terms = run(jax.tree.map(cast, start), batch, jax.random.key(KEY))
            assert terms["loss"].dtype == terms["grad_norm"].dtype == dtype
            values.append((float(terms["loss"]), float(terms["grad_norm"])))
    assert values[0][0] == pytest.approx(values[1][0], rel=1e-5)
    assert values[0][1] == pytest.approx(values[1][1], rel=1e-4)


@every_method
def test_state_survives_a_checkpoint(name: str, tmp_path: Path) -> None:
    made = method(name)
    batch = toys.batch(made.hooks.views)
    optimizer = optax.adam(1e-3)
    state = started(made, optimizer, batch)
    store = Checkpoints(tmp_path, lambda: state, pytest.fail, run={})
    store.save("latest", state._replace(step=jnp.asarray(5, jnp.int32)), {})
    found = store.restore()
    store.close()
    assert jax.tree.structure(found[0]) == jax.tree.structure(state)
    for a, b in zip(leaves(found[0]), leaves(state._replace(step=jnp.asarray(5, jnp.int32))), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)


@every_method
def test_learns_a_few_images(name: str) -> None:
    """MAP@R rises, where tasks tell single images apart in the columns that learn classes alone.

    Recall@1 is near 1 with random weights already.
    """
    made = method(name)
    batch = toys.batch(made.hooks.views, size=64, classes=DATA.classes, seed=3)
    optimizer = optax.adam(2e-2)
    run = jax.jit(step.build(made, optimizer))
    state = started(made, optimizer, batch)

    def map_at_r() -> float:
        embeddings = np.asarray(embed(name)(state.params, state.model_state, batch.images[0]))
        np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, rtol=1e-5)
        embeddings = embeddings[:, OF_CLASSES.get(name, slice(None))]
        embeddings = embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)
        return float(metrics.retrieval(embeddings, np.asarray(batch.labels), ks=(1,))["map@r"])

    losses, before = [], map_at_r()
    for _ in range(200):
        state, terms = run(state, batch, jax.random.key(KEY))
        losses.append(float(terms["loss"]))
    assert losses[-1] < losses[0]
    assert map_at_r() > before + 0.05
