"""The figures of MPN from the command line, and its embeddings after message passing."""

from dataclasses import asdict
from pathlib import Path

import jax
import numpy as np
import pytest

from dml_jax import run as runs
from dml_jax.commands import analyse
from dml_jax.config import Config, Group, Train, resolve
from dml_jax.console import Console
from dml_jax.methods.mpn import method as mpn
from dml_jax.train.distributed.stop_signals import Stop
from dml_jax.train.records import workdir
from tests.commands.analysed import figures, table, write
from tests.train.experiments import values


def tiny() -> Config:
    """MPN on digits for four steps, keeping two models."""
    train = Train(
        groups={group: Group(1e-3) for group in mpn.GROUPS}, steps=4, keep_every=2, log_every=2
    )
    method = asdict(mpn.Config(embedding_dim=8, heads=2))
    return resolve(values(steps=4) | {"name": "tiny", "method": method, "train": asdict(train)})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("run"), tiny())


def test_attention(run: Path) -> None:
    analyse.execute([f"--model={run}", "--what=attention", "--batch=3", "--node=5", "--quiet"])
    assert [row["step"] for row in table(run, "attention")] == ["0", "0", "2", "2", "4", "4"]
    assert {row["head"] for row in table(run, "attention_node")} == {"1", "2"}
    assert figures((run / "report.html").read_text()) == ["attention", "attention_node"]
    assert all(
        (run / "analysis" / f"{name}.png").stat().st_size > 5000
        for name in ("attention", "attention_node")
    )


def test_a_training_batch_without_and_with_message_passing(run: Path, tmp_path: Path) -> None:
    options = ["--batch=2", "--split=batch", "--what=components", f"--output={tmp_path}", "--quiet"]
    analyse.execute([f"--model={run}", "--compare=refined", *options])
    rows = table(tmp_path, "components", "figures")
    config = resolve(workdir.read_config(run)["config"])
    experiment, state = runs.restore(config, run, "latest", Console(quiet=True))
    batch = runs.evaluated(experiment, experiment.model(state), run, Console(quiet=True), batch=2)
    split = experiment.splits["train"]
    index = experiment.sampler.batch(2)
    for model in (run.name, "refined"):
        assert sorted(row["image"] for row in rows if row["model"] == model) == sorted(
            split.ids[i] for i in index
        )
    plain, refined = batch.embeddings("batch"), batch.refined().embeddings("batch")
    network = mpn.MessagePassingNetwork(config.method, len(split.classes))
    (expected,) = jax.jit(
        lambda params, plain: mpn.refine(params, plain, np.arange(16)[None], network, 16)
    )(state.params["mpn"], plain)
    np.testing.assert_allclose(refined, expected, atol=1e-4)
    assert np.abs(refined - plain).max() > 0.1


@pytest.mark.slow
def test_figures_of_a_trained_run(tmp_path: Path) -> None:
    with Stop() as stop:
        runs.train(tiny(), tmp_path, Console(quiet=True), stop)
    analyse.execute([f"--model={tmp_path}", "--what=attention,influence"])
    shown = figures((tmp_path / "report.html").read_text())
    assert shown[-4:] == ["attention", "attention_node", "influence", "influence_untrained"]
