"""The heat maps of CRT: of a tiny run, and against loops."""

from dataclasses import asdict
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.papers import crt as figures
from dml_jax import run as runs
from dml_jax.config import Group, Train, resolve
from dml_jax.console import Console
from dml_jax.methods import crt
from dml_jax.train.distributed.stop_signals import Stop
from tests.commands.analysed import table
from tests.train.experiments import values


def test_correlations_of_prototypes() -> None:
    rng = np.random.default_rng(0)
    prototypes, maps = rng.normal(size=(3, 4)), rng.normal(size=(2, 2, 3, 4))
    found = np.asarray(figures.correlations(jnp.asarray(prototypes), jnp.asarray(maps)))
    for n, i, j, k in np.ndindex(2, 2, 3, 3):
        assert found[n, i, j, k] == pytest.approx(np.log1p(np.exp(maps[n, i, j] @ prototypes[k])), rel=1e-5)
    flat = found.copy()
    flat[..., 1] = 4.0
    assert figures.most_selective(flat, 2).tolist() == [0, 2]


@pytest.mark.slow
def test_heat_maps_of_a_trained_run(tmp_path: Path) -> None:
    train = Train(groups={group: Group(1e-3) for group in crt.GROUPS}, steps=2, log_every=2)
    method = asdict(crt.Config(embedding_dims=(8, 12), prototypes=(9, 9), hidden_dim=8))
    config = resolve(values(steps=2) | {"name": "tiny", "method": method, "train": asdict(train)})
    with Stop() as stop:
        runs.train(config, tmp_path, Console(quiet=True), stop)
    figures.main([str(tmp_path)])
    rows = table(tmp_path, "heat_maps")
    assert len({row["prototype"] for row in rows}) == figures.PROTOTYPES
    assert len({row["image"] for row in rows}) == 5  # one of each class
    assert all(float(row["weight"]) > 0 for row in rows)
    assert (tmp_path / "analysis" / "heat_maps.png").stat().st_size > 5000
