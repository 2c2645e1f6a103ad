"""Every recipe starts as its authors' code does: the moments of all initial values, and the first
update.

`initial/*.json`, or `initial.json`, contains, by paper and parameter, shape, kind (normal, uniform
or constant), mean, standard deviation and range of one draw of the authors' constructors, with
those of the bias.
"""

import json
from collections import ChainMap
from functools import cache
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from dml_jax.backbones.contract import Backbone
from dml_jax.config import files, plugin_module
from dml_jax.methods import baseline
from dml_jax.methods.contract import Batch, TrainingSet, zeros
from dml_jax.train import optimizers, step
from tests import papers
from tests.golden import fixtures
from tests.golden.initial import Case

CLASSES = {"cub": 100, "cars": 98, "sop": 11_318}
BASELINE: dict[str, dict[str, Case]] = {
    "Proxy-Anchor": {
        "embedding (ResNet-50)": Case("cars_baseline:proxy_anchor", "embedding"),
        **{
            f"proxies ({data})": Case(f"{data}_baseline:proxy_anchor", "loss/proxies")
            for data in CLASSES
        },
    },
    "Revisiting": {
        "embedding": Case("cars_baseline:margin", "embedding"),
        **{
            f"{name} ({data})": Case(f"{data}_baseline:{loss}", f"loss/{parameter}")
            for name, loss, parameter in (
                ("proxynca proxies", "proxy_nca", "proxies"),
                ("arcface class_map", "arcface", "proxies"),
                ("softtriplet centroids", "soft_triple", "proxies"),
                ("margin beta", "margin", "beta"),
            )
            for data in CLASSES
        },
    },
    "ProxyNCA++": {
        "proxies (cub, 2048-d)": Case("cub_baseline:proxy_nca_pp", "loss/proxies"),
        "proxies (sop, 2048-d)": Case("sop_baseline:proxy_nca_pp", "loss/proxies"),
        "embedding (2048-d)": Case("cub_baseline:proxy_nca_pp", "embedding"),
    },
    "NormSoftmax (Zhai & Wu)": {
        "embedding remap (512-d)": Case("cub_baseline:normalized_softmax", "embedding"),
        "weight (cub)": Case("cub_baseline:normalized_softmax", "loss/proxies"),
        "weight (sop)": Case("sop_baseline:normalized_softmax", "loss/proxies"),
    },
    "XBM": {"embedding fc": Case("cars_baseline:multi_similarity-memory", "embedding")},
}
# Without a recipe here: other losses in the authors' code, and papers whose losses are trained by
# the shared recipe (configs/recipes/baseline.py).
NO_RECIPE = {
    "Proxy-Anchor": {"Proxy_NCA proxies (cars, other loss)"},
    "Revisiting": {f"softmax class_map ({data})" for data in CLASSES},
    "SoftTriple": {"fc (cars, dim 64, K 10)", "embedding"},
    "Smooth-AP": {"embedding (512-d)"},
}
OF_PAPERS = [module.CASES for module in papers.modules(Path(__file__).parent / "initial")]
CASES = dict(ChainMap(BASELINE, *OF_PAPERS))
FILES = sorted([*fixtures.ROOT.glob("initial/*.json"), *fixtures.ROOT.glob("initial.json")])
AUTHORS: dict[str, dict[str, Any]] = dict(ChainMap(*(json.loads(f.read_text()) for f in FILES)))
COMPARED = [(paper, name) for paper, group in AUTHORS.items() for name in CASES.get(paper, {})]


def test_every_group_is_known() -> None:
    for paper, groups in AUTHORS.items():
        assert set(groups) == {*CASES.get(paper, ()), *NO_RECIPE.get(paper, ())}, paper


def backbone(channels: int) -> Backbone:
    """Without parameters; the inputs are the feature maps."""
    return Backbone(
        lambda *_: ({}, {}), lambda params, stats, x, **_: (x, stats), channels, lambda x: x
    )


@cache
def drawn(config: str, channels: int) -> Any:
    """The initial parameters of a configuration, by key."""
    file, _, variant = config.partition(":")
    found = files.resolved(f"configs/{file}.py{variant and ':'}{variant}", {})
    classes = CLASSES[found.data.name]
    labels = np.arange(2 * classes) % classes
    data = TrainingSet(classes, len(labels), labels)
    method = plugin_module("method", found.method.name).build(
        found.method, backbone(channels), data
    )
    return method.init(jax.random.key(0), zeros(found.data.batch_size, (1, 1), method.hooks.views))[
        0
    ]


def agrees(ours: np.ndarray, theirs: dict[str, Any]) -> None:
    """Two draws of the same distribution, up to six standard errors."""
    assert ours.size == np.prod(theirs["shape"])
    if theirs["kind"] == "constant":
        np.testing.assert_array_equal(ours, np.float32(theirs["mean"]))
        return
    n, sd = ours.size, theirs["sd"]
    assert abs(ours.mean() - theirs["mean"]) < 6 * sd * (2 / n) ** 0.5
    assert abs(ours.std() / sd - 1) < 6 / n**0.5
    # The range of a uniform distribution is sqrt(3) deviations; a normal one exceeds two.
    widest = np.abs(ours).max() / ours.std()
    assert widest < 1.95 if theirs["kind"] == "uniform" else widest > 2.05


@pytest.mark.parametrize(("paper", "name"), COMPARED)
def test_moments(paper: str, name: str) -> None:
    case, theirs = CASES[paper][name], AUTHORS[paper][name]
    found = drawn(case.config, case.channels)
    for key in case.path.split("/"):
        found = found[key]
    layer = found if isinstance(found, dict) else {"kernel": found}
    columns = slice(*case.columns) if case.columns else slice(None)
    weight = np.asarray(layer.get("kernel", layer.get("scale")))
    agrees(weight[..., columns], theirs)
    bias = theirs["bias"] or {"trained": False}
    assert ("bias" in layer) == bias.get("trained", True)
    if "bias" in layer:
        agrees(np.asarray(layer["bias"])[columns], bias)


def unit(x: np.ndarray) -> tuple[np.ndarray, Any]:
    """Rows of unit length, and the gradient with respect to x from that with respect to them."""
    lengths = np.linalg.norm(x, axis=1, keepdims=True)
    u = x / lengths
    return u, lambda g: (g - u * np.sum(g * u, axis=1, keepdims=True)) / lengths


def proxy_anchor(cosines: np.ndarray, same: np.ndarray) -> np.ndarray:
    """dL / dcos of Proxy-Anchor (Eq. 4), with alpha = 32 and delta = 0.1."""
    near = np.where(same, np.exp(-32 * (cosines - 0.1)), 0)
    far = np.where(same, 0, np.exp(32 * (cosines + 0.1)))
    pull = -32 * near / (1 + near.sum(axis=0)) / same.any(axis=0).sum()
    return pull + 32 * far / (1 + far.sum(axis=0)) / same.shape[1]


def softmax(cosines: np.ndarray, same: np.ndarray) -> np.ndarray:
    """dL / dcos of the normalised softmax with sigma = 0.05."""
    p = np.exp(cosines / 0.05)
    return (p / p.sum(axis=1, keepdims=True) - same) / 0.05 / len(same)


def adamw(p: np.ndarray, g: np.ndarray, rate: float) -> np.ndarray:
    """The first update: the bias corrections leave g / (|g| + eps); decay 1e-4."""
    return p - rate * (g / (np.abs(g) + 1e-8) + 1e-4 * p)


def sgd(p: np.ndarray, g: np.ndarray, rate: float) -> np.ndarray:
    return p - rate * (g + 1e-4 * p)


@pytest.mark.parametrize(
    ("variant", "gradient", "rates"),
    [
        ("proxy_anchor", proxy_anchor, {"embedding": 1e-4, "loss": 1e-2}),
        ("normalized_softmax", softmax, {"embedding": 1e-2, "loss": 1e-2}),
    ],
)
def test_first_update(variant: str, gradient: Any, rates: dict[str, float], x64: None) -> None:
    """Gradient and update of the layer and the proxies, from maps of one position."""
    config = files.resolved(f"configs/cars_baseline.py:{variant}", {})
    method = baseline.build(config.method, backbone(32), TrainingSet(6, 12))
    rng, labels = np.random.default_rng(0), np.array([0, 0, 1, 1, 2, 3], np.int32)
    features = rng.normal(size=(6, 32))
    schedule = optimizers.rate_factor(config.train, start=0, stop=10, milestones=(8,))
    optimizer = optimizers.build(config.train, method, schedule)
    images: Any = features[None, :, None, None]
    batch = Batch(images, labels, labels)
    state = step.initial(method, optimizer, jax.random.key(0), batch)
    state = jax.tree.map(lambda x: np.asarray(x, np.float64) if x.ndim else x, state)
    updated, _ = jax.jit(step.build(method, optimizer))(state, batch, jax.random.key(0))

    x = features * (2 if config.method.pooling == "avg+max" else 1)
    if config.method.layer_norm:
        x = x - x.mean(axis=1, keepdims=True)
        x = x / np.sqrt(np.mean(x**2, axis=1, keepdims=True) + 1e-5)
    layer, proxies = state.params["embedding"], state.params["loss"]["proxies"]
    e, pull_e = unit(x @ layer["kernel"] + layer.get("bias", 0))
    p, pull_p = unit(proxies)
    same = labels[:, None] == np.arange(6)[None]
    g = gradient(e @ p.T, same)
    d_layer = pull_e(g @ p)
    grads = {"kernel": x.T @ d_layer, "bias": d_layer.sum(axis=0)}
    update = {"adamw": adamw, "sgd": sgd}[config.train.optimizer]
    for key, value in layer.items():
        expected = update(value, grads[key], rates["embedding"])
        np.testing.assert_allclose(
            updated.params["embedding"][key] - value, expected - value, rtol=1e-5, atol=1e-12
        )
    expected = update(proxies, pull_p(g.T @ e), rates["loss"])
    np.testing.assert_allclose(
        updated.params["loss"]["proxies"] - proxies, expected - proxies, rtol=1e-5, atol=1e-12
    )
