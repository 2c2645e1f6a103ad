"""CRT: equation 1 against its printed form, the variants in the paper's tables, and the whole method."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import special

from dml_jax.backbones import functional
from dml_jax.methods.contract import TrainingSet
from dml_jax.methods.crt import method as crt
from dml_jax.train import step
from tests import toys

SMALL = {"embedding_dims": (4, 6), "prototypes": (3, 3), "hidden_dim": 5}
DATA = TrainingSet(classes=4, images=16)


def parameters(key: jax.Array, channels: int, config: crt.Config) -> Any:
    return functional.init(crt.Branches(config), key, functional.struct(1, 1, channels))[0]


def test_the_residuals_of_all_positions_are_never_materialized() -> None:
    n, k, p, width = 2, 5, 11, 13
    params = {"prototypes": jnp.ones((k, width)), "features": jnp.ones((n, p, width))}
    gradient = jax.grad(lambda z: crt.coded_residuals(z["prototypes"], z["features"]).sum())
    jaxpr = jax.make_jaxpr(gradient)(params)

    def sizes(jaxpr: Any) -> list[int]:
        found = [v.aval.size for eqn in jaxpr.eqns for v in eqn.outvars]
        inner = jax.tree.leaves([list(eqn.params.values()) for eqn in jaxpr.eqns])
        return found + [n for sub in inner if hasattr(sub, "eqns") for n in sizes(sub)]

    assert 0 < max(sizes(jaxpr.jaxpr)) < n * k * p * width


def test_diversity() -> None:
    diversity = jax.jit(crt.diversity)
    assert diversity(np.ones((1, 3))) == 0  # K = 1 in Tables 8 and 9
    np.testing.assert_allclose(diversity(np.array([[1.0, 0], [-2, 0], [0, 3]])), 1 / 3, rtol=1e-6)


def test_initial_values_follow_torch_linear() -> None:
    config = crt.Config(prototypes=(8, 8), embedding_dims=(32, 32), hidden_dim=64)
    params = jax.tree.map(np.asarray, parameters(jax.random.key(3), 16, config))
    trunk, output = params["branch1"], params["branch1"]["output"]
    hidden = trunk["hidden"]["kernel"]
    for values, inputs in ((trunk["prototypes"], 16), (hidden, 16), (output["kernel"], 64)):
        bound = inputs**-0.5
        assert 0.9 * bound < np.abs(values).max() <= bound
    assert not np.array_equal(hidden[0], hidden[1])
    assert not np.array_equal(output["kernel"], params["branch2"]["output"]["kernel"])


@pytest.mark.parametrize(
    ("options", "terms", "leaves"),
    [
        ({}, {"diversity1"}, 7),
        ({"gamma": "single"}, {"diversity1"}, 7),
        ({"sharing": "separate", "prototypes": (3, 2)}, {"diversity1", "diversity2"}, 10),
        ({"transform": "average"}, set(), 4),
    ],
)
def test_variants(options: dict[str, Any], terms: set[str], leaves: int) -> None:
    config = crt.Config(**(SMALL | options))
    method = crt.build(config, toys.linear(), DATA)
    batch = toys.batch(1)
    params, model_state = toys.drawn(method)
    given = params, model_state, batch, np.int32(0), jax.random.key(1)
    loss, aux = jax.jit(partial(step.loss, method))(*given)
    kinds = ("positives", "negatives", "multi_similarity")
    counts = {f"{kind}{b}" for kind in kinds for b in (1, 2)}
    assert set(aux.metrics) == counts | terms | {"consistency"}
    logged = jax.tree.map(np.asarray, aux.metrics)
    weighted = logged["multi_similarity1"] + 0.1 * logged["multi_similarity2"]
    weighted += 0.9 * logged["consistency"]
    np.testing.assert_allclose(loss, weighted + sum(logged[term] for term in terms), rtol=1e-6)
    assert len(jax.tree.leaves({key: params[key] for key in crt.BRANCHES})) == leaves
    embedded = jax.jit(method.embed)(params, model_state, batch.images[0])
    assert embedded.shape == (16, 4)
    np.testing.assert_allclose(np.linalg.norm(embedded, axis=1), 1, rtol=1e-6)


def test_placebos_of_the_residuals() -> None:
    """Equation 1 with the differences to another prototype, and with prototypes of 0."""
    rng = np.random.default_rng(0)
    x, c = rng.normal(size=(2, 7, 4)), rng.normal(size=(3, 4))
    s = np.log1p(np.exp(np.einsum("npl,kl->npk", x, c)))
    others = np.roll(c, 1, axis=0)
    expected = np.einsum("npk,npkl->nkl", s, x[:, :, None] - others)
    found = crt.coded_residuals(*(jnp.asarray(part, jnp.float32) for part in (c, x, others)))
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)

    features = jnp.asarray(x, jnp.float32)
    configs = {kind: crt.Config(**SMALL, transform=kind) for kind in ("residual", "wide_average")}
    params = {kind: parameters(jax.random.key(0), 4, config) for kind, config in configs.items()}
    assert not crt.own_prototypes(params["wide_average"])
    zeros = jax.tree.map(lambda leaf: leaf, params["residual"])
    zeros["branch1"]["prototypes"] = jnp.zeros((3, 4))
    trunk = {k: v for k, v in zeros["branch1"].items() if k != "prototypes"}
    without = params["residual"] | {"branch1": trunk}
    ones, others = (
        crt.Branches(configs[kind]).apply({"params": given}, features)
        for kind, given in (("residual", zeros), ("wide_average", without))
    )
    for one, other in zip(ones, others, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)

    params["residual"]["branch1"]["prototypes"] = jnp.asarray(c, jnp.float32)
    shuffled = crt.Branches(crt.Config(**SMALL, transform="shuffled"))
    (found, _) = shuffled.apply({"params": params["residual"]}, features)
    layers = jax.tree.map(np.asarray, params["residual"]["branch1"])
    hidden, output = layers["hidden"], layers["output"]
    y = np.einsum("nkl,klh->nkh", expected, hidden["kernel"]) + hidden["bias"]
    y = y * (1 + special.erf(y / np.sqrt(2))) / 2
    y = np.einsum("nkh,khd->nkd", y, output["kernel"]) + output["bias"]
    np.testing.assert_allclose(found, y.mean(axis=1), rtol=1e-4, atol=1e-4)


def test_statistics_of_the_prototypes() -> None:
    """KL of a position's weights from 1/K, and the perplexity of their mean, over K."""
    rng = np.random.default_rng(0)
    x, c = rng.normal(size=(2, 5, 4)), 3 * rng.normal(size=(3, 4))
    s = np.log1p(np.exp(np.einsum("npl,kl->npk", x, c)))
    shares = s / s.sum(axis=2, keepdims=True)
    mean = shares.reshape(-1, 3).mean(axis=0)
    found = crt.prototype_statistics(jnp.asarray(c), jnp.asarray(x))
    divergence = np.mean(np.sum(shares * np.log(3 * shares), axis=2))
    assert found["prototype_divergence"] == pytest.approx(divergence, rel=1e-4)
    used = np.exp(-np.sum(mean * np.log(mean))) / 3
    assert found["prototypes_used"] == pytest.approx(used, rel=1e-4)
