"""The command: what it writes for a run, and invalid input."""

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax import config as configs
from dml_jax import files
from dml_jax import run as runs
from dml_jax.analysis.run_report import SUBJECTS
from dml_jax.commands import analyse
from dml_jax.config import Group, Train
from dml_jax.console import Console
from dml_jax.methods import mpn
from dml_jax.train import experiment as experiments
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed.stop_signals import Stop
from dml_jax.train.records import kept_models, workdir
from tests.commands.conftest import Fails
from tests.train.experiments import values, write_run

MADE = (
    "retrieval", "classes", "components", "overfitting", "spectra", "tsne",
    "attention", "attention_node", "influence", "influence_untrained",
)  # fmt: skip


def tiny() -> configs.Config:
    """MPN on digits for four steps, keeping two models."""
    groups = {group: Group(1e-3) for group in mpn.GROUPS}
    train = Train(groups=groups, steps=4, keep_every=2, log_every=2)
    method = asdict(mpn.Config(embedding_dim=8, heads=2))
    return configs.resolve(values(steps=4) | {"name": "tiny", "method": method, "train": asdict(train)})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a finished run leaves, with the untrained model in all places."""
    directory, experiment = tmp_path_factory.mktemp("run"), experiments.build(tiny())
    state = experiment.initial_state()
    store = write_run(directory, experiment, state._replace(step=jnp.asarray(4, jnp.int32)))
    for step in (2, 4):
        kept_models.write(store.kept, state._replace(step=jnp.asarray(step, jnp.int32)), store.run)
    lines: list[dict[str, Any]] = [{"step": step, "loss": 1.0} for step in (2, 4)]
    (directory / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    files.write_json(directory / "results.json", {"model": "last", "step": 4, "recall@1": 0.5, "protocol": "clean"})
    return directory


@pytest.fixture(scope="module", autouse=True)
def _restored_once() -> Iterator[None]:
    """Each run is read and compiled once."""
    restore, known = runs.restore, dict[str, Any]()

    def restored(config: configs.Config, directory: Path, checkpoint: str, console: Console) -> Any:
        key = f"{config} {directory} {checkpoint}"
        if key not in known:
            known[key] = restore(config, directory, checkpoint, console)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "restore", restored)
        yield


def table(directory: Path, name: str, folder: str = "analysis") -> list[dict[str, str]]:
    with (directory / folder / f"{name}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def figures(report: str) -> list[str]:
    """The names of the figures of a page."""
    return re.findall('<figure [^>]*?id="([\\w-]+)"', report)


def test_analyses_are_gathered_in_the_report(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also those of an earlier command and of another split."""
    analyse.execute([f"--model={run}", "--what=attention", "--batch=3", "--node=5", "--quiet"])
    analyse.execute([f"--model={run}", "--what=classes", "--quiet"])
    assert [row["step"] for row in table(run, "attention")] == ["0", "0", "2", "2", "4", "4"]
    assert {row["head"] for row in table(run, "attention_node")} == {"1", "2"}
    assert sum(int(row["queries"]) for row in table(run, "classes")) == 896
    report = (run / "report.html").read_text()
    shown = figures(report)
    assert shown == ["classes", "attention", "attention_node"]
    assert all((run / "analysis" / f"{name}.png").stat().st_size > 5000 for name in shown)
    assert all(f'href="analysis/{name}.csv"' in report for name in shown)
    assert '<meta name="viewport"' in report
    assert "report: " in capsys.readouterr().out


@pytest.fixture(scope="module")
def other(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on the same data whose embedding has other weights."""
    directory = tmp_path_factory.mktemp("runs") / "other"
    directory.mkdir()
    facts = workdir.read_config(run)
    _, state = runs.restore(configs.resolve(facts["config"]), run, "latest", Console(quiet=True))
    params = {**state.params, "embedding": jax.tree.map(jnp.cos, state.params["embedding"])}
    files.write_json(directory / "config.json", facts)
    store = Checkpoints(directory / "checkpoints", lambda: state, pytest.fail, run=facts)
    store.save("latest", state._replace(params=params), {})
    store.close()
    return directory


def test_models_side_by_side(run: Path, other: Path, tmp_path: Path) -> None:
    """A run, another, and the first before its training, which here is the same network; of chosen classes."""
    both = [f"--compare={other},untrained", "--classes=8,6", f"--output={tmp_path}", "--quiet"]
    analyse.execute([f"--model={run}", *both, "--what=components"])
    rows = table(tmp_path, "components", "figures")
    assert {row["class"] for row in rows} == {"8", "6"}
    names = [run.name, "other", "untrained"]
    assert list(dict.fromkeys(row["model"] for row in rows)) == names
    places = [[row["x"] for row in rows if row["model"] == name] for name in names]
    assert places[0] == places[2] != places[1]
    report = (tmp_path / "report.html").read_text()
    assert figures(report) == ["components"]
    assert f"{run}, {other},untrained on 896 images of 5 classes of digits (test)" in report
    assert not (other / "analysis").exists()


def test_a_training_batch_without_and_with_message_passing(run: Path, tmp_path: Path) -> None:
    options = ["--batch=2", "--split=batch", "--what=components", f"--output={tmp_path}", "--quiet"]
    analyse.execute([f"--model={run}", "--compare=refined", *options])
    rows = table(tmp_path, "components", "figures")
    config = configs.resolve(workdir.read_config(run)["config"])
    experiment, state = runs.restore(config, run, "latest", Console(quiet=True))
    batch = runs.evaluated(experiment, experiment.model(state), run, Console(quiet=True), batch=2)
    split = experiment.splits["train"]
    index = experiment.sampler.batch(2)
    for model in (run.name, "refined"):
        assert sorted(row["image"] for row in rows if row["model"] == model) == sorted(split.ids[i] for i in index)
    plain, refined = batch.embeddings("batch"), batch.refined().embeddings("batch")
    network = mpn.MessagePassingNetwork(config.method, len(split.classes))
    nodes = jnp.arange(16)[None]
    (expected,) = mpn.refine(state.params["mpn"], jnp.asarray(plain), nodes, network, 16)
    np.testing.assert_allclose(refined, expected, atol=1e-4)
    assert np.abs(refined - plain).max() > 0.1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "arguments are required: --model"),
        (["--model={}", "--what=atention"], "--what=atention: there is no 'atention'; did you mean attention"),
        (["--model={}", "--what=heat_maps"], "--what=heat_maps: method mpn has no prototypes on the feature map"),
        (["--model={}", "--split=validation"], "--split=validation: the run has none; give train or test or batch"),
        (["--model={}", "--split=train", "--what=attention"], "--what=attention: is not made by split"),
        (["--model={}", "--config.method.layers=2"], "--config.method.layers: belongs to the run; only data.path"),
        (["--model={}", "--checkpoint=3"], "--checkpoint=3: not in"),
        (["--model={}", "--node=16"], "--node=16: must be in 0 to 15"),
        (["--model={}", "--compare=x", "--what=classes"], "--what=classes: not with --compare, only components"),
        (["--model={}", "--compare=refined", "--what=tsne"], "message passing needs a batch; add --split=batch"),
        (["--model={}", "--split=batch", "--what=classes"], "--what=classes: not with --split=batch"),
        (["--model={}", "--classes=3", "--what=classes"], "--what=classes: shows no chosen classes"),
        (["--model={}", "--classes=50", "--what=tsne"], "--classes=50: must be in 1 to 5"),
        (["--model={}", "--classes=5,seven", "--what=tsne"], "--classes=5,seven: there is no 'seven'"),
    ],
)
def test_invalid_input(arguments: list[str], message: str, run: Path, fails: Fails) -> None:
    assert message in fails(analyse, *(argument.format(run) for argument in arguments))


@pytest.mark.slow
def test_everything_of_a_trained_run(tmp_path: Path) -> None:
    with Stop() as stop:
        runs.train(tiny(), tmp_path, Console(quiet=True), stop)
    analyse.execute([f"--model={tmp_path}", f"--what={','.join(s for s in SUBJECTS if s != 'heat_maps')}"])
    analyse.execute([f"--model={tmp_path}", "--what=components", "--split=train"])
    report = (tmp_path / "report.html").read_text()
    at = MADE.index("components") + 1
    assert figures(report) == ["loss", "recall", *MADE[:at], "components-train", *MADE[at:]]
    results = json.loads((tmp_path / "results.json").read_text())
    recalls = table(tmp_path, "overfitting")
    assert [(row["step"], row["classes"]) for row in recalls] == [(s, c) for c in ("train", "test") for s in "024"]
    assert float(recalls[-1]["recall@1"]) == pytest.approx(results["recall@1"])
    by_class = [(float(row["recall@1"]), int(row["queries"])) for row in table(tmp_path, "classes")]
    assert sum(recall * count for recall, count in by_class) == pytest.approx(results["recall@1"] * 896, abs=1e-2)
    for scalar in ("density", "effective_rank"):
        assert f"{results['geometry'][scalar]:.4g}" in report
