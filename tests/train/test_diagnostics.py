"""Health of the training: statistics against loops, warnings, and no effect on the training."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh

from dml_jax.console import Console
from dml_jax.methods import hist
from dml_jax.methods.contract import TrainingSet
from dml_jax.train.distributed import mesh
from dml_jax.train.records import diagnostics
from dml_jax.train.step import TrainState
from tests import toys


def test_summary() -> None:
    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(9, 5)), np.array([0, 0, 0, 1, 1, 2, 2, 2, 3])
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    distances: dict[bool, list[float]] = {True: [], False: []}
    for i in range(9):
        for j in range(i):
            distances[bool(labels[i] == labels[j])].append(float(np.linalg.norm(x[i] - x[j])))
    values = np.linalg.svd(x, compute_uv=False)
    share = values / values.sum()
    expected = {"effective_rank": np.exp(-sum(p * np.log(p) for p in share))}
    for name, same in (("same", True), ("different", False)):
        expected |= {f"{name}_p{q}": np.quantile(distances[same], q / 100) for q in (10, 50, 90)}
    found = diagnostics.summary(x, labels)
    assert found.keys() == expected.keys()
    assert all(found[name] == pytest.approx(value, rel=1e-9) for name, value in expected.items())
    assert set(diagnostics.summary(x[:3], labels[:3])) == {"same_p10", "same_p50", "same_p90", "effective_rank"}


def test_problems_are_named() -> None:
    rng = np.random.default_rng(0)
    labels = np.repeat(np.arange(4), 4)
    healthy = rng.normal(size=(16, 8))
    healthy /= np.linalg.norm(healthy, axis=1, keepdims=True)
    assert diagnostics.problems(diagnostics.summary(healthy, labels), 1.0) == {}
    point = healthy[:1] + 1e-4 * healthy
    assert set(diagnostics.problems(diagnostics.summary(point / np.linalg.norm(point[0]), labels), 1.0)) == {"distance"}
    line = healthy[:1] * np.where(labels % 2, 1, -1)[:, None]
    assert set(diagnostics.problems(diagnostics.summary(line, labels), 1.0)) == {"rank"}
    assert set(diagnostics.problems(diagnostics.summary(healthy, labels), 0.0)) == {"gradient"}


def mesh_of(devices: int) -> Mesh:
    return Mesh(np.asarray(jax.devices()[:devices]), (mesh.AXIS,), axis_types=(AxisType.Auto,))


@pytest.mark.parametrize("devices", [1, 8])
def test_monitor(devices: int, capsys: pytest.CaptureFixture[str]) -> None:
    """The embeddings are those of a test, on any number of devices; a warning is printed when it appears."""
    method = hist.build(hist.Config(embedding_dim=8, hidden_dim=8), toys.backbone(), TrainingSet(4, 64))
    used = mesh_of(devices)
    host = toys.batch(1)
    batch = mesh.shard_batch(used, *(np.asarray(field) for field in host[:3]))
    params, model_state = jax.jit(method.init)(jax.random.key(1), host)
    state = mesh.replicate(used, TrainState(jnp.asarray(3, jnp.int32), params, model_state, ()))
    monitor = diagnostics.Monitor(method, used, 1, Console())
    line = monitor.measure(state, batch, 1.0)
    embedded = np.asarray(jax.jit(method.embed)(params, model_state, host.images[0]))
    expected = diagnostics.summary(embedded, np.asarray(host.labels))
    assert {name.removeprefix(diagnostics.PREFIX) for name in line} == set(expected)
    for name, value in expected.items():
        assert line[f"{diagnostics.PREFIX}{name}"] == pytest.approx(value, rel=1e-4), name

    blank = state._replace(params=mesh.replicate(used, jax.tree.map(jnp.zeros_like, params)))
    capsys.readouterr()
    for _ in range(2):
        line = monitor.measure(blank, batch, 0.0)
        assert set(line["warnings"]) >= {"distance", "gradient"}
    printed = capsys.readouterr().out
    assert printed.count("have collapsed to a point") == printed.count("the gradient is zero") == 1
    assert "warning: step 3: " in printed
