"""The layer in closed form, against SciPy, and as the start of a baseline."""

import jax
import numpy as np
import scipy.linalg

from dml_jax.methods import baseline, whitening
from dml_jax.methods.contract import TrainingSet
from tests import toys

LABELS = np.repeat(np.arange(4), (5, 6, 7, 8))


def features(channels: int = 7) -> np.ndarray:
    """Classes around different means, with unequal variances."""
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(len(LABELS), channels)) * np.arange(1, channels + 1)
    return (rows + 10 * rng.normal(size=(4, channels))[LABELS]).astype(np.float32)


def test_whitening_against_scipy() -> None:
    x = features()
    within = np.concatenate([x[c == LABELS] - x[c == LABELS].mean(axis=0) for c in range(4)])
    covariance = within.T.astype(float) @ within / len(x)
    shrunk = covariance + np.trace(covariance) / 7 * np.eye(7)
    root = np.linalg.inv(scipy.linalg.sqrtm(shrunk))
    expected = 7 * root / np.trace(root)
    kernel, bias = whitening.within_classes(x, LABELS)
    np.testing.assert_allclose(kernel, expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(x.mean(axis=0) @ kernel + bias, np.zeros(7), atol=1e-4)


def test_single_images_are_only_centred() -> None:
    kernel, bias = whitening.within_classes(features()[:4], np.arange(4))
    np.testing.assert_allclose(kernel, np.eye(7), atol=1e-6)
    np.testing.assert_allclose(bias, -features()[:4].mean(axis=0), rtol=1e-5)


def test_only_proxies_become_class_means() -> None:
    """Not the weights [D, C] of a classifier of as many classes as channels."""
    config = baseline.make_config("cross_entropy+proxy_nca", embedding_dim=0, init="whitened")
    method = baseline.build(config, toys.linear(4), TrainingSet(4, len(LABELS), LABELS))
    drawn, state = toys.drawn(method)
    assert method.hooks.refresh is not None
    params, _ = method.hooks.refresh.update(drawn, state, features(4), jax.random.key(1))
    changed = {name for name in drawn["loss"] if (drawn["loss"][name] != params["loss"][name]).any()}
    assert changed == {"proxy_nca_proxies"} < drawn["loss"].keys()
    assert drawn["loss"]["cross_entropy_kernel"].shape == (4, 4)


def test_a_baseline_starts_with_it() -> None:
    """The layer is the identity before, and afterwards; class means become proxies as long as those drawn."""
    config = baseline.make_config("proxy_anchor", embedding_dim=0, init="whitened")
    method = baseline.build(config, toys.linear(7), TrainingSet(4, len(LABELS), LABELS))
    images = toys.batch(1, size=16).images[0]
    drawn = jax.jit(lambda key: method.init(key, toys.batch(1, size=16)))(jax.random.key(0))
    assert method.hooks.refresh is not None
    assert method.hooks.refresh.epochs == 0  # once, before training
    assert method.hooks.published is not None
    embed = jax.jit(method.embed)
    pooled = np.asarray(jax.jit(method.hooks.refresh.features)(*drawn, images))
    unit = pooled / np.linalg.norm(pooled, axis=1, keepdims=True)
    np.testing.assert_allclose(embed(*drawn, images), unit, rtol=1e-4)

    params, state = method.hooks.refresh.update(*drawn, features(), jax.random.key(1))
    kernel, bias = whitening.within_classes(features(), LABELS)
    rows = pooled @ kernel + bias
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    np.testing.assert_allclose(embed(params, state, images), rows, rtol=1e-3, atol=1e-5)
    train = features() @ kernel + bias
    train /= np.linalg.norm(train, axis=1, keepdims=True)
    means = np.stack([train[c == LABELS].mean(axis=0) for c in range(4)])
    lengths = np.linalg.norm(drawn[0]["loss"]["proxies"], axis=1)
    expected = means / np.linalg.norm(means, axis=1, keepdims=True) * lengths.mean()
    np.testing.assert_allclose(params["loss"]["proxies"], expected, rtol=1e-3, atol=1e-5)
    again = method.hooks.published(params, state)
    np.testing.assert_allclose(embed(*again, images), unit, rtol=1e-4)
