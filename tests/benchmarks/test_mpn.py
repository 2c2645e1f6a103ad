"""The figures of MPN, of a tiny run; influence against finite differences."""

from dataclasses import asdict
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks.papers import mpn as figures
from dml_jax import run as runs
from dml_jax.config import Group, Train, resolve
from dml_jax.console import Console
from dml_jax.methods.contract import TrainingSet
from dml_jax.methods.mpn import method as mpn
from dml_jax.train.distributed.stop_signals import Stop
from tests import toys
from tests.commands.analysed import figures as shown_in
from tests.commands.analysed import table
from tests.train.experiments import values

CLASSES = 4


def test_influence_is_the_gradient() -> None:
    """Against central differences of the log-probability in every pixel."""
    config = mpn.Config(embedding_dim=8, heads=2, temperature=0.5)
    method = mpn.build(config, toys.backbone(), TrainingSet(CLASSES, 16))
    batch = toys.batch(1, classes=CLASSES)
    params, model_state = method.init(jax.random.key(0), batch)
    # The classifier starts near zero; larger weights give larger gradients.
    params["mpn"]["classifier"]["kernel"] = jax.random.normal(jax.random.key(1), (8, CLASSES))
    network = mpn.MessagePassingNetwork(config, CLASSES)
    anchors = jnp.asarray([2, 9])
    compute = jax.jit(partial(figures.gradient_norms, method, network))
    found = np.asarray(compute(params, model_state, batch.images, batch.labels, anchors))
    assert found.shape == (2, 16)

    @jax.jit
    def log_probability(pixels: jax.Array) -> jax.Array:
        encoded, _ = method.encode(params, model_state, pixels, train=False)
        logits = method.hooks.teach(params, model_state, encoded).logits
        return jax.nn.log_softmax(logits[9] / 0.5)[batch.labels[9]]

    pixels = np.asarray(batch.images, np.float32)
    for image in (9, 8, 0):
        derivatives = []
        for row, column, channel in np.ndindex(pixels.shape[2:]):
            step = np.zeros_like(pixels)
            step[0, image, row, column, channel] = 4.0
            derivatives.append(float(log_probability(pixels + step) - log_probability(pixels - step)) / 8)
        assert found[1, image] == pytest.approx(np.linalg.norm(derivatives), rel=0.02)


@pytest.mark.slow
def test_figures_of_a_trained_run(tmp_path: Path) -> None:
    """Steps and numbers of the tables; the batch's embeddings before and after message passing."""
    train = Train(groups={group: Group(1e-3) for group in mpn.GROUPS}, steps=4, keep_every=2, log_every=2)
    method = asdict(mpn.Config(embedding_dim=8, heads=2))
    config = resolve(values(steps=4) | {"name": "tiny", "method": method, "train": asdict(train)})
    run = tmp_path / "run"
    with Stop() as stop:
        runs.train(config, run, Console(quiet=True), stop)
    figures.main([str(run), "--batch=3", "--node=5"])
    names = ["attention", "attention_node", "batch", "influence", "influence_untrained"]
    assert sorted(shown_in((run / "report.html").read_text()))[:2] == names[:2]
    assert set(names) <= set(shown_in((run / "report.html").read_text()))
    assert all((run / "analysis" / f"{name}.png").stat().st_size > 5000 for name in names)
    assert [row["step"] for row in table(run, "attention")] == ["0", "0", "2", "2", "4", "4"]
    weights = [float(row["weight"]) for row in table(run, "attention_node")]
    np.testing.assert_allclose(np.reshape(weights, (6, 16)).sum(axis=1), 1, rtol=1e-5)
    rows = table(run, "batch")
    experiment, _ = runs.restore(config, run, "latest", Console(quiet=True))
    split, index = experiment.splits["train"], experiment.sampler.batch(3)
    for model in ("run", "refined"):
        ids = sorted(row["image"] for row in rows if row["model"] == model)
        assert ids == sorted(split.ids[i] for i in index)
    with pytest.raises(SystemExit):
        figures.main([str(run), "--node=16"])


def test_influence_by_kind() -> None:
    norms = np.array([[9.0, 3.0, 1.0, 2.0], [1.0, 2.0, 5.0, 4.0]])
    found = figures.mean_by_kind(norms, np.array([0, 2]), np.array([0, 0, 1, 1]))
    assert found == {"the image itself": 7.0, "same class": 3.5, "other classes": 1.5}
    assert "same class" not in figures.mean_by_kind(norms, np.array([0, 2]), np.arange(4))
