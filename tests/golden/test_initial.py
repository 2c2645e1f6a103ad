"""Every recipe starts as its authors' code does: the moments of all initial values, and the first update.

`initial/*.json`, or `initial.json`, contains, by paper and parameter, shape, kind (normal, uniform or constant), mean,
standard deviation and range of one draw of the authors' constructors, with those of the bias.
"""

import csv
import json
from collections import ChainMap
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import pytest

from dml_jax.config import files, plugin_module
from dml_jax.methods import baseline
from dml_jax.methods.contract import Batch, TrainingSet, zeros
from dml_jax.train import optimizers, step
from tests.golden import fixtures

CLASSES = {"cub": 100, "cars": 98, "sop": 11_318}


class Case(NamedTuple):
    """A parameter of a configuration, for a group of a paper in the authors' code.

    Attributes:
      config: the file, with its variant; empty if no recipe here starts like the group (another
        loss in the authors' code, or a loss that is trained by `configs/recipes/baseline.py`).
      path: keys of the parameter, or of a layer with "kernel" or "scale" and "bias", joined by "/".
      channels: of the feature map.
      columns: FIRST:LAST of the kernel and the bias, or all.
    """

    paper: str
    group: str
    config: str
    path: str
    channels: str
    columns: str


TABLES = sorted((Path(__file__).parent / "initial").glob("*.csv"))
LINES = [table.read_text(encoding="utf-8").splitlines() for table in TABLES]
ROWS = [Case(**row) for lines in LINES for row in csv.DictReader(lines)]
CASES = {(case.paper, case.group): case for case in ROWS}
FILES = sorted([*fixtures.ROOT.glob("initial/*.json"), *fixtures.ROOT.glob("initial.json")])
AUTHORS: dict[str, dict[str, Any]] = dict(ChainMap(*(json.loads(f.read_text()) for f in FILES)))
GROUPS = {(paper, group): facts for paper, of in AUTHORS.items() for group, facts in of.items()}


def test_every_group_is_known() -> None:
    assert set(GROUPS) == {key for key in CASES if key[0] in AUTHORS}


backbone = partial(fixtures.of_vectors, maps=True)  # the inputs are the feature maps


@cache
def drawn(config: str, channels: int) -> Any:
    """The initial parameters of a configuration, by key."""
    file, _, variant = config.partition(":")
    found = files.resolved(f"configs/{file}.py{variant and ':'}{variant}", {})
    classes = CLASSES[found.data.name]
    labels = np.arange(2 * classes) % classes
    data = TrainingSet(classes, len(labels), labels)
    build = plugin_module("method", found.method.name).build
    method = build(found.method, backbone(channels), data)
    batch = zeros(found.data.batch_size, (1, 1), method.hooks.views)
    return method.init(jax.random.key(0), batch)[0]


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


@pytest.mark.parametrize("key", [key for key, case in CASES.items() if case.config and key in GROUPS])
def test_moments(key: tuple[str, str]) -> None:
    case, theirs = CASES[key], GROUPS[key]
    found = drawn(case.config, int(case.channels))
    for part in case.path.split("/"):
        found = found[part]
    layer = found if isinstance(found, dict) else {"kernel": found}
    columns = slice(*map(int, case.columns.split(":"))) if case.columns else slice(None)
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
    close = partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-12)
    for key, value in layer.items():
        expected = update(value, grads[key], rates["embedding"]) - value
        close(updated.params["embedding"][key] - value, expected)
    expected = update(proxies, pull_p(g.T @ e), rates["loss"]) - proxies
    close(updated.params["loss"]["proxies"] - proxies, expected)
