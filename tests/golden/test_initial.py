"""Every recipe starts as its authors' code does: the moments of all initial values.

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
from dml_jax.methods.contract import TrainingSet, zeros
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
