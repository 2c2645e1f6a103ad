"""Every baseline as a method: degenerate batches, memory, devices, mistakes."""

from dataclasses import asdict
from typing import Any, get_args

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from dml_jax.backbones.contract import Backbone
from dml_jax.config_schema import close
from dml_jax.errors import ConfigError
from dml_jax.losses import multi_similarity as ms
from dml_jax.methods import baseline, heads
from dml_jax.methods.baseline import options
from dml_jax.methods.contract import Batch
from dml_jax.train import step

LOSSES = get_args(options.Loss)
SIZE = 16


def toy(dtype: Any = jnp.float32) -> Backbone:
    """One linear layer on every pixel."""

    def apply(params: Any, stats: Any, inputs: jax.Array, *, train: bool, key: Any) -> tuple[jax.Array, Any]:
        return heads.linear(params, inputs).astype(dtype), stats

    return Backbone(
        init=lambda key, shape: (heads.linear_init(key, 3, 7), {}),
        apply=apply,
        channels=7,
        preprocess=lambda images: images.astype(jnp.float32) / 255 - 0.5,
    )


def batch(labels: Any = None, seed: int = 0) -> Batch:
    images = np.random.default_rng(seed).integers(0, 256, (1, SIZE, 2, 4, 3))
    labels = np.arange(SIZE) // 4 if labels is None else labels
    return Batch(jnp.asarray(images, jnp.uint8), jnp.asarray(labels, jnp.int32), jnp.arange(SIZE))


def built(config: baseline.Config, dtype: Any = jnp.float32, rate: float = 0.1) -> tuple[Any, Any, Any]:
    """(method, first state, jitted step)."""
    method, optimizer = baseline.build(config, toy(dtype), num_classes=SIZE), optax.sgd(rate)
    state = jax.jit(lambda key: step.initial(method, optimizer, key, batch()))(jax.random.key(0))
    return method, state, jax.jit(step.build(method, optimizer))


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_takes_finite_steps(loss: Any) -> None:
    """Regular and degenerate batches, one compilation; low precision features as well."""
    remembers = loss in options.PAIR_LOSSES
    config = baseline.Config(loss=loss, embedding_dim=5, memory=24 if remembers else 0)
    dtype = jnp.bfloat16 if remembers else jnp.float32
    method, state, update = built(config, dtype, rate=1e-3)
    duplicates = batch()
    pairs = duplicates.images.at[:, 1::2].set(duplicates.images[:, ::2])
    cases = {
        "regular": batch(),
        "one class": batch(np.zeros(SIZE)),
        "singletons": batch(np.arange(SIZE)),
        "one image": batch()._replace(images=batch().images[:, :1].repeat(SIZE, axis=1)),
        "black": batch()._replace(images=jnp.zeros_like(batch().images)),
        "duplicates": duplicates._replace(images=pairs, labels=jnp.arange(SIZE) // 2),
    }
    for name, case in cases.items():
        after, terms = update(state, case, jax.random.key(1))
        assert all(jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves((after, terms))), name
        assert terms["loss"].dtype == jnp.float32
        if name == "regular":
            assert terms["grad_norm"] > 0
    assert update._cache_size() == 1
    embedded = method.embed(state.params, state.model_state, batch().images[0])
    np.testing.assert_allclose(jnp.linalg.norm(embedded.astype(jnp.float32), axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize("loss", ["proxy_anchor", "lifted_structure"])
def test_the_loss_falls_where_classes_differ_in_colour(loss: Any) -> None:
    _, state, update = built(baseline.Config(loss=loss, embedding_dim=5), rate=0.3)
    colours = jnp.asarray([[200, 0, 0], [0, 200, 0], [0, 0, 200], [200, 200, 0]], jnp.uint8)
    tinted = batch()._replace(images=batch().images // 8 + colours[jnp.arange(SIZE) // 4][None, :, None, None, :])
    losses = []
    for _ in range(60):
        state, terms = update(state, tinted, jax.random.key(1))
        losses.append(float(terms["loss"]))
    assert losses[-1] < 0.8 * losses[0]


def test_the_loss_is_that_of_its_function() -> None:
    """Assembled by hand from the embeddings: the mean over the samples of the smoothed, normalised softmax."""
    config = baseline.Config(
        embedding_dim=5,
        pooling="max",
        layer_norm=True,
        normalized_softmax=options.NormalizedSoftmax(temperature=0.2, smoothing=0.1),
    )
    method, state, _ = built(config)
    loss, _ = method.loss(state.params, state.model_state, batch(), jax.random.key(1))
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


def test_the_memory_adds_the_loss_against_past_batches() -> None:
    config = baseline.Config(loss="contrastive", embedding_dim=5, memory=2 * SIZE, memory_after=2, memory_weight=0.5)
    _, state, update = built(config, rate=0.0)
    in_batch, past = [], []
    for i in range(4):
        state, terms = update(state, batch(seed=i), jax.random.key(1))
        in_batch.append(float(terms["loss"] - 0.5 * terms["memory"]))
        past.append(float(terms["memory"]))
        assert set(terms) == {"loss", "memory", "grad_norm"}
    assert past[:2] == [0, 0]
    assert min(past[2:]) > 0
    np.testing.assert_array_equal(state.model_state["memory"]["labels"], np.tile(np.arange(SIZE) // 4, 2))

    # With a frozen network the memory of step 4 holds what step 2 and 3 embedded.
    method = baseline.build(config, toy(), SIZE)
    x, y, z = (np.asarray(method.embed(state.params, state.model_state, batch(seed=i).images[0])) for i in (3, 1, 2))
    classes = np.arange(SIZE) // 4

    def contrastive(gallery: np.ndarray, labels: np.ndarray, alone: np.ndarray) -> float:
        d = np.linalg.norm(x[:, None] - gallery[None], axis=-1)
        same = classes[:, None] == labels[None]
        near, far = d[same & ~alone], np.maximum(1 - d, 0)[~same]
        return float(near.mean() + far.sum() / (far > 0).sum())

    nobody = np.zeros((SIZE, 2 * SIZE), bool)
    assert past[3] == pytest.approx(contrastive(np.concatenate([y, z]), np.tile(classes, 2), nobody), rel=1e-4)
    assert in_batch[3] == pytest.approx(contrastive(x, classes, np.eye(SIZE, dtype=bool)), rel=1e-4)


def test_eight_devices_take_the_step_of_one() -> None:
    _, state, update = built(baseline.Config(loss="contrastive", embedding_dim=5, memory=2 * SIZE))
    past = {
        "embeddings": jax.random.normal(jax.random.key(2), (2 * SIZE, 5)),
        "labels": jnp.arange(2 * SIZE) % 4,
    }
    state = state._replace(model_state={**state.model_state, "memory": past})
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Auto,))
    copied, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    spread = jax.device_put(batch(), Batch(NamedSharding(mesh, P(None, "data")), rows, rows))
    alone, terms = update(state, batch(), jax.random.key(1))
    together, same = update(jax.device_put(state, copied), spread, jax.random.key(1))
    assert terms["memory"] > 0
    np.testing.assert_allclose(terms["loss"], same["loss"], rtol=1e-5)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6), alone, together)


def test_parameters_of_the_losses() -> None:
    shapes = {}
    for loss in LOSSES:
        config = baseline.Config(loss=loss, embedding_dim=5)
        tree = jax.eval_shape(lambda key, c=config: baseline.loss_init(key, 6, c), jax.random.key(0))
        shapes[loss] = {name: leaf.shape for name, leaf in tree.items()}
    assert shapes["cross_entropy"] == {"kernel": (5, 6), "bias": (6,)}
    assert shapes["soft_triple"] == {"proxies": (6, 10, 5)}
    assert shapes["margin"] == {"beta": (6,)}
    assert shapes["proxy_anchor"] == {"proxies": (6, 5)}
    assert all(shapes[loss] == {} for loss in options.PAIR_LOSSES if loss != "margin")


def test_every_option_can_be_written_in_a_configuration() -> None:
    config = baseline.Config(loss="triplet", triplet=options.Triplet(mining="hard"))
    assert close(baseline.Config, asdict(config), "method") == config


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"loss": "tripet"}, r"method\.loss='tripet': did you mean triplet"),
        (
            {"loss": "margin", "triplet": {"margin": 0.3}},
            r"method\.triplet\.margin=0\.3: is an option of another loss",
        ),
        (
            {"loss": "proxy_anchor", "memory": 64},
            r"method\.memory=64: method\.loss=proxy_anchor has no pairs",
        ),
        (
            {"normalized_softmax": {"temperature": 0.0}},
            r"method\.normalized_softmax\.temperature=0\.0: must be pos",
        ),
        (
            {"loss": "triplet", "triplet": {"margin": -1.0}},
            r"method\.triplet\.margin=-1\.0: must not be negative",
        ),
        ({"loss": "triplet", "triplet": {"mining": "easy"}}, r"method\.triplet\.mining='easy'"),
    ],
)
def test_mistakes_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        close(baseline.Config, values, "method")


def test_one_class_cannot_be_learned() -> None:
    with pytest.raises(ConfigError, match="needs two training classes"):
        baseline.build(baseline.Config(loss="multi_similarity", multi_similarity=ms.Options()), toy(), 1)
