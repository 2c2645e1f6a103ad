"""The command: what it writes for a run, and invalid input."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from dml_jax import files
from dml_jax import run as runs
from dml_jax.analysis.run_report import ANALYSES
from dml_jax.commands import analyse
from dml_jax.config import Config, resolve
from dml_jax.console import Console
from dml_jax.data.formats import digits
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed.stop_signals import Stop
from dml_jax.train.records import workdir
from tests import toys
from tests.commands.analysed import figures, table, tiny, write

IMAGES = 112  # of the test split: one in eight
MADE = ("retrieval", "classes", "components", "overfitting", "spectra", "tsne")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("run"), tiny())


@pytest.fixture(scope="module", autouse=True)
def _restored_once() -> Iterator[None]:
    """Each run is read and compiled once, and has few images."""
    restore, known = runs.restore, dict[str, Any]()

    def restored(config: Config, directory: Path, checkpoint: str, console: Console) -> Any:
        key = f"{config} {directory} {checkpoint}"
        if key not in known:
            known[key] = restore(config, directory, checkpoint, console)
        return known[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "restore", restored)
        patch.setattr(digits, "load", toys.few_digits(8))
        yield


def test_analyses_are_gathered_in_the_report(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also those of an earlier command and of another split."""
    analyse.execute([f"--model={run}", "--what=overfitting", "--quiet"])
    analyse.execute([f"--model={run}", "--what=classes", "--quiet"])
    assert [row["step"] for row in table(run, "overfitting")] == ["0", "2", "4", "0", "2", "4"]
    assert sum(int(row["queries"]) for row in table(run, "classes")) == IMAGES
    report = (run / "report.html").read_text()
    shown = figures(report)
    assert shown == ["classes", "overfitting"]
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
    _, state = runs.restore(resolve(facts["config"]), run, "latest", Console(quiet=True))
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
    assert f"{run}, {other},untrained on {IMAGES} images of 5 classes of digits (test)" in report
    assert not (other / "analysis").exists()


def test_help_lists_every_analysis() -> None:
    listed = re.findall(r"^  (\w+)  +\S", analyse.parser().description or "", flags=re.MULTILINE)
    assert sorted(listed) == sorted(ANALYSES) == sorted(MADE)


@pytest.mark.slow
def test_everything_of_a_trained_run(tmp_path: Path) -> None:
    with Stop() as stop:
        runs.train(tiny(), tmp_path, Console(quiet=True), stop)
    analyse.execute([f"--model={tmp_path}"])
    analyse.execute([f"--model={tmp_path}", "--what=components", "--split=train"])
    report = (tmp_path / "report.html").read_text()
    at = MADE.index("components") + 1
    assert figures(report) == ["loss", "recall", *MADE[:at], "components-train", *MADE[at:]]
    results = json.loads((tmp_path / "results.json").read_text())
    recalls = table(tmp_path, "overfitting")
    assert [(row["step"], row["classes"]) for row in recalls] == [(s, c) for c in ("train", "test") for s in "024"]
    assert float(recalls[-1]["recall@1"]) == pytest.approx(results["recall@1"])
    by_class = [(float(row["recall@1"]), int(row["queries"])) for row in table(tmp_path, "classes")]
    assert sum(recall * count for recall, count in by_class) == pytest.approx(results["recall@1"] * IMAGES, abs=1e-2)
    for scalar in ("density", "effective_rank"):
        assert f"{results['geometry'][scalar]:.4g}" in report
