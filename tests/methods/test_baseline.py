"""Every baseline as a method: degenerate batches, memory, devices, options."""

import importlib
import re
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dml_jax import losses
from dml_jax.config.fields import validate
from dml_jax.methods import baseline
from dml_jax.methods.contract import Batch, TrainingSet
from dml_jax.train import step
from dml_jax.train.step import digest
from tests import toys
from tests.contract.cases import degenerate
from tests.plugins import distance

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "extend.md"
LOSSES = tuple(baseline.LOSSES)
SIZE = 16
DATA = TrainingSet(classes=SIZE, images=SIZE)


def batch(labels: Any = None, seed: int = 0) -> Batch:
    drawn = toys.batch(1, size=SIZE, seed=seed)
    return drawn if labels is None else drawn._replace(labels=np.asarray(labels, np.int32))


def built(
    config: baseline.Config, dtype: Any = jnp.float32, rate: float = 0.1, data: TrainingSet = DATA
) -> tuple[Any, Any, Any]:
    """(method, initial state, jitted step)."""
    method, optimizer = baseline.build(config, toys.linear(dtype=dtype), data), optax.sgd(rate)
    params, model_state = toys.drawn(method)
    state = step.TrainState(np.int32(0), params, model_state, optimizer.init(params))
    return method, state, jax.jit(step.build(method, optimizer))


SHORT = ("proxy_anchor", "soft_triple", "triplet", "margin", "multi_similarity", "smooth_ap")


@pytest.mark.parametrize(
    "loss", [pytest.param(loss, marks=[] if loss in SHORT else [pytest.mark.slow]) for loss in LOSSES]
)
def test_every_loss_takes_finite_steps(loss: Any) -> None:
    """On regular and degenerate batches, with one compilation, from float32 and bfloat16 features."""
    config = baseline.make_config(loss, embedding_dim=5, memory=24 if loss in baseline.PAIR_LOSSES else 0)
    dtype = jnp.bfloat16 if loss in baseline.PAIR_LOSSES else jnp.float32
    method, state, update = built(config, dtype, rate=1e-3)
    cases = {"regular": batch()} | degenerate(1, classes=SIZE)
    for name, case in cases.items():
        after, terms = update(state, case, jax.random.key(1))
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((after, terms))), name
        assert terms["loss"].dtype == jnp.float32
        if name == "regular":
            assert digest(after.params) != digest(state.params)
    assert update._cache_size() == 1
    embedded = jax.jit(method.embed)(state.params, state.model_state, batch().images[0])
    lengths = np.linalg.norm(np.asarray(embedded, np.float32), axis=1)
    np.testing.assert_allclose(lengths, 1, rtol=1e-5)


def test_loss_from_pixels() -> None:
    """The mean of the smoothed normalised softmax, computed in NumPy from the images."""
    options = {"temperature": 0.2, "smoothing": 0.1}
    head = {"embedding_dim": 5, "pooling": "max", "layer_norm": True}
    method, state, _ = built(baseline.make_config("normalized_softmax", options, **head))
    given = state.params, state.model_state, batch(), state.step, jax.random.key(1)
    loss, _ = jax.jit(partial(step.loss, method))(*given)
    tree = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), state.params)
    pixels = np.asarray(batch().images[0], np.float64) / 255 - 0.5
    pooled = (pixels @ tree["backbone"]["kernel"] + tree["backbone"]["bias"]).max(axis=(1, 2))
    pooled = (pooled - pooled.mean(1, keepdims=True)) / np.sqrt(pooled.var(1, keepdims=True) + 1e-5)
    x = pooled @ tree["embedding"]["kernel"] + tree["embedding"]["bias"]
    unit = lambda x: x / np.linalg.norm(x, axis=1, keepdims=True)  # noqa: E731
    logits = unit(x) @ unit(tree["loss"]["proxies"]).T / 0.2
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    target = 0.9 * np.eye(SIZE)[np.arange(SIZE) // 4] + 0.1 / SIZE
    assert float(loss) == pytest.approx(-(target * log_p).sum(1).mean(), rel=1e-5)


def test_without_a_linear_layer() -> None:
    """The embeddings are the pooled features; proxies and memory have as many dimensions."""
    config = baseline.make_config("contrastive+proxy_nca", embedding_dim=0, memory=SIZE)
    method = baseline.build(config, toys.linear(), DATA)
    params, model_state = toys.drawn(method)
    assert params["loss"]["proxy_nca_proxies"].shape == (SIZE, 7)
    assert model_state["memory"]["embeddings"].shape == (SIZE, 7)
    tree = jax.tree.map(lambda leaf: np.asarray(leaf, np.float64), params["backbone"])
    pixels = np.asarray(batch().images[0], np.float64) / 255 - 0.5
    pooled = (pixels @ tree["kernel"] + tree["bias"]).mean(axis=(1, 2))
    embeddings = jax.jit(method.embed)(params, model_state, batch().images[0])
    expected = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    np.testing.assert_allclose(embeddings, expected, rtol=1e-5, atol=1e-6)


def test_a_sum_of_losses_with_weights() -> None:
    """contrastive + 0.5 classifier; the memory adds the pair loss."""
    options = {"normalized_softmax": {"temperature": 0.3}}
    names = "contrastive+normalized_softmax+proxy_nca"
    sizes = {"embedding_dim": 5, "memory": SIZE, "weights": (1.0, 0.5, 0.0)}
    method, state, update = built(baseline.make_config(names, options, **sizes), rate=0.0)
    alone = {}
    for loss in names.split("+"):
        config = baseline.make_config(loss, options.get(loss, {}), embedding_dim=5)
        of_loss = {name.removeprefix(f"{loss}_"): leaf for name, leaf in state.params["loss"].items() if loss in name}
        given = {**state.params, "loss": of_loss}, state.model_state, batch(), state.step
        single = partial(step.loss, baseline.build(config, toys.linear(), DATA))
        alone[loss], _ = jax.jit(single)(*given, jax.random.key(1))
    assert set(state.params["loss"]) == {"normalized_softmax_proxies", "proxy_nca_proxies"}
    for seed in range(2):
        state, terms = update(state, batch(), jax.random.key(seed))
        for loss, value in alone.items():
            assert float(terms[f"loss_{loss}"]) == pytest.approx(float(value), rel=1e-5)
        expected = alone["contrastive"] + 0.5 * alone["normalized_softmax"] + terms["memory"]
        assert float(terms["loss"]) == pytest.approx(float(expected), rel=1e-5)
        assert float(terms["memory"]) > 0
    teaching = jax.eval_shape(method.hooks.teach, state.params, state.model_state, jnp.ones((3, 5)))
    assert teaching.logits.shape == (3, SIZE)


def test_losses_that_draw_do_not_share_a_key() -> None:
    _, state, update = built(baseline.make_config("triplet+n_pair+margin", embedding_dim=5))
    with jax.debug_key_reuse(True):
        update(state, batch(), jax.random.key(1))


def test_a_relation_in_place_of_equal_labels() -> None:
    """Weights of classes, within the batch and against the memory; NaN is neither."""
    weights = np.random.default_rng(3).integers(0, 4, (SIZE, SIZE)) / 3
    weights[:, 2] = np.nan
    config = baseline.make_config("sup_con", embedding_dim=5, memory=SIZE)
    method, state, update = built(config, rate=0.0, data=DATA._replace(relation=weights))
    labels = np.asarray(batch().labels)
    pairs = weights[np.ix_(labels, labels)]
    assert np.isnan(pairs).any()

    @jax.jit
    def expected(params: Any, images: jax.Array) -> tuple[jax.Array, jax.Array]:
        x = method.embed(params, state.model_state, images)
        positive, negative = np.where(pairs > 0, pairs, 0), pairs == 0
        positive = jnp.where(jnp.eye(SIZE, dtype=bool), 0, positive)  # no image with its own copy
        past = losses.sup_con(x, labels, candidates=losses.Candidates(x, positive, negative))
        return losses.sup_con(x, positive=positive, negative=negative), past

    present, past = expected(state.params, batch().images[0])
    state, terms = update(state, batch(), jax.random.key(1))
    assert float(terms["loss"] - terms["memory"]) == pytest.approx(float(present), rel=1e-5)
    assert float(terms["memory"]) == pytest.approx(float(past), rel=1e-5)


def test_a_distance_in_training_and_evaluation() -> None:
    path = "tests.plugins.distance.poincare"
    config = baseline.make_config("triplet", {"mining": "all"}, embedding_dim=5, distance=path)
    method, state, update = built(config, rate=0.0)
    assert method.distance is distance.poincare
    x = jax.jit(method.embed)(state.params, state.model_state, batch().images[0])
    assert not np.allclose(np.linalg.norm(x, axis=1), 1)  # embeddings as they are
    _, terms = update(state, batch(), jax.random.key(1))
    triplet = jax.jit(partial(losses.triplet, mining="all", distance=distance.poincare))
    expected = triplet(x, batch().labels)
    assert float(terms["loss"]) == pytest.approx(float(expected), rel=1e-5)


def test_the_memory_adds_the_loss_against_this_batch_and_past_ones() -> None:
    config = baseline.make_config("contrastive", embedding_dim=5, memory=2 * SIZE, memory_after=2)
    _, state, update = built(config, rate=0.0)
    in_batch, past = [], []
    for i in range(4):
        state, terms = update(state, batch(seed=i), jax.random.key(1))
        in_batch.append(float(terms["loss"] - terms["memory"]))
        past.append(float(terms["memory"]))
        assert set(terms) == {"loss", "memory"}
        filled = int(np.sum(state.model_state["memory"]["labels"] >= 0))
        assert filled == SIZE * min(max(i - 1, 0), 2)  # nothing is stored before it is used
    assert past[:2] == [0, 0]
    assert min(past[2:]) > 0
    stored = state.model_state["memory"]["labels"]
    np.testing.assert_array_equal(stored, np.tile(np.arange(SIZE) // 4, 2))

    # The network is frozen, so at step 4 the memory holds the embeddings of steps 3 and 4.
    method = baseline.build(config, toys.linear(), DATA)
    embed = jax.jit(method.embed)
    x, y = (embed(state.params, state.model_state, batch(seed=i).images[0]) for i in (3, 2))
    same = np.tile(batch().labels[:, None] == batch().labels[None], 2)
    near, far = same.copy(), ~same
    near[:, SIZE:][np.eye(SIZE, dtype=bool)] = False  # no image with its own copy
    memory = losses.Candidates(np.concatenate([y, x]), near, far)
    contrastive = jax.jit(losses.contrastive)
    expected = float(contrastive(x, batch().labels, candidates=memory))
    assert past[3] == pytest.approx(expected, rel=1e-4)
    assert in_batch[3] == pytest.approx(float(contrastive(x, batch().labels)), rel=1e-4)


def test_initial_parameters_of_the_losses() -> None:
    def initial(loss: str, options: dict[str, Any] | None = None) -> Any:
        config = baseline.make_config(loss, options, embedding_dim=50)
        method = baseline.build(config, toys.linear(), TrainingSet(400, 400))
        return jax.jit(method.init)(jax.random.key(0), batch())[0]["loss"]

    boundaries = initial("margin", {"beta": 0.7})["beta"]
    np.testing.assert_array_equal(boundaries, np.full(400, 0.7, np.float32))
    classifier = initial("cross_entropy")
    for leaf in (classifier["kernel"], classifier["bias"]):
        assert np.abs(leaf).max() == pytest.approx(50**-0.5, rel=0.03)


WITH_PROXIES = """
from dml_jax.losses import proxy_anchor
from dml_jax.losses.signature import Proxies

def nearest(embeddings, labels, proxies: Proxies, *, steepness=16.0, text="unused"):
    return proxy_anchor(embeddings, labels, proxies, alpha=steepness)
"""


def test_functions_of_other_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The guide's loss as printed, and one with proxies: their signatures are all that declares them."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    own = next(block for block in blocks if "def my_loss" in block)
    (tmp_path / "guide_losses.py").write_text(own + WITH_PROXIES)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("guide_losses")
    config = baseline.make_config("guide_losses.my_loss", {"scale": 2.0}, embedding_dim=5)
    _, state, update = built(config)
    after, _ = update(state, batch(), jax.random.key(1))
    assert digest(after.params) != digest(state.params)
    config = baseline.make_config("guide_losses.nearest", {"steepness": 8}, embedding_dim=5)
    assert asdict(config)["nearest"] == {"init": "he", "steepness": 8.0, "text": "unused"}
    method, state, _ = built(config)
    given = state.params, {"backbone": {}}, batch(), state.step, jax.random.key(1)
    value, _ = jax.jit(partial(step.loss, method))(*given)
    embedded = jax.jit(method.embed)(state.params, {"backbone": {}}, batch().images[0])
    proxy_anchor = jax.jit(partial(losses.proxy_anchor, alpha=8.0))
    expected = proxy_anchor(embedded, batch().labels, state.params["loss"]["proxies"])
    assert float(value) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_resolved_configuration_has_the_options_of_one_loss(loss: str) -> None:
    config = baseline.make_config(loss, embedding_dim=5)
    assert set(asdict(config)) & set(LOSSES) == {loss}
    assert validate(baseline.config_type(asdict(config)), asdict(config), "method") == config
