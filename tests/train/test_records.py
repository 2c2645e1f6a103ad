"""What a work directory says about its run is true: checkpoints are bound to configuration, data and precision."""

import json
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import dml_jax
from dml_jax import main, run, seal, table
from dml_jax.analysis import run_report
from dml_jax.config import Config
from dml_jax.console import Console
from dml_jax.errors import CheckpointError, ConfigError
from dml_jax.train import loop, model, model_metrics, warm_start
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed.stop_signals import Interrupted, Stop
from dml_jax.train.embedding import Embedder
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import workdir
from dml_jax.train.step import TrainState
from tests.train.experiments import small
from tests.train.loops import StopAt

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.usefixtures("patches")
QUIET = Console(quiet=True)
CONFIG = small(steps=6, log_every=2, checkpoint_every=2)
CONFIG = replace(CONFIG, evaluation=replace(CONFIG.evaluation, controls=False))


def quick(
    experiment: Experiment, directory: Path, facts: dict[str, Any], console: Console, stop: Stop, *_: Any
) -> TrainState:
    """Stands in for the training loop: counts the steps, and stops after the fourth if it is to be stopped."""
    with closing(Checkpoints(directory / "checkpoints", experiment.template, console.warn, run=facts)) as checkpoints:
        restored = checkpoints.restore()
        state = restored[0] if restored else warm_start.initial_state(experiment)
        for step in range(int(state.step) + 2, experiment.steps + 1, 2):
            state = state._replace(step=jnp.asarray(step, jnp.int32))
            checkpoints.save("latest", state, {})
            if step == 4 and isinstance(stop, StopAt):
                raise Interrupted(signal.SIGTERM)
    return state


def results(experiment: Experiment, state: TrainState, *_: Any) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Stands in for the final evaluation."""
    length = {"steps": experiment.config.train.steps, "epochs": experiment.config.train.epochs}
    return {"step": int(state.step), "steps": experiment.steps, "length": length}, {"test": np.eye(896, 8)}


@pytest.fixture(scope="module", autouse=True)
def nothing_is_computed() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "train", quick)
        patch.setattr(model_metrics, "final", results)
        patch.setattr(Embedder, "embed_split", lambda embedder, model, split: np.eye(len(split.labels), 8))
        for name in ("write", "print_table"):
            patch.setattr(run_report, name, lambda *_: None)
        yield


@pytest.fixture(scope="module")
def interrupted(patches: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped after 4 of 6 steps; read-only."""
    directory = tmp_path_factory.mktemp("runs") / "interrupted"
    with pytest.raises(Interrupted):
        run.train(CONFIG, directory, QUIET, StopAt(4))
    return directory


@pytest.fixture(scope="module")
def finished(interrupted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run at its end; read-only."""
    directory = Path(shutil.copytree(interrupted, tmp_path_factory.mktemp("runs") / "finished"))
    run.train(CONFIG, directory, QUIET, Stop())
    return directory


def test_a_manifest_says_everything(interrupted: Path) -> None:
    facts = json.loads((interrupted / "config.json").read_text())
    for checkpoint in workdir.complete_checkpoints(interrupted / "checkpoints" / "latest"):
        content = json.loads((checkpoint / seal.MANIFEST).read_text())
        keys = ("config", "data_hash", "classes", "images", "shape", "x64")
        assert content["about"]["run"] == {key: facts[key] for key in keys}
        for name, entry in content["files"].items():
            assert (checkpoint / name).stat().st_size == entry["size"]


@pytest.mark.parametrize("end", ["interrupted", "finished"])
def test_without_config_json_another_run_is_refused(end: str, request: Any, tmp_path: Path) -> None:
    """And nothing is written that claims otherwise; the same run goes on."""
    directory = Path(shutil.copytree(request.getfixturevalue(end), tmp_path / "run"))
    (directory / "config.json").unlink()
    (directory / seal.MANIFEST).unlink(missing_ok=True)
    other = replace(CONFIG, seed=7)
    message = r"latest/\d: belongs to a run with a different configuration: seed \(0 there, 7 here\)"
    with pytest.raises(CheckpointError, match=message):
        run.train(other, directory, QUIET, Stop())
    assert not (directory / "config.json").exists()
    run.train(CONFIG, directory, QUIET, Stop())
    assert (directory / "results.json").exists()


def test_a_checkpoint_of_another_run_is_never_read(interrupted: Path, tmp_path: Path) -> None:
    """Neither to continue nor to evaluate or load; nor is it taken for damage and deleted."""
    directory = Path(shutil.copytree(interrupted, tmp_path / "run"))
    facts = json.loads((directory / "config.json").read_text())
    facts["config"]["method"]["proxy_anchor"]["alpha"] = 99.0
    (directory / "config.json").write_text(json.dumps(facts))
    loss = replace(CONFIG.method.proxy_anchor, alpha=99.0)
    other: Config = replace(CONFIG, method=replace(CONFIG.method, proxy_anchor=loss))
    for read in (
        lambda: run.train(other, directory, QUIET, Stop()),
        lambda: run.restore(other, directory, "reported", QUIET),
        lambda: run.restore(other, directory, "2", QUIET),
        lambda: model.load(directory, "latest", print),
    ):
        message = r"latest/\d: belongs to .*anchor\.alpha \(32\.0 there, 99\.0 here\)"
        with pytest.raises(CheckpointError, match=message):
            read()
    assert len(workdir.complete_checkpoints(directory / "checkpoints" / "latest")) == 2


def test_a_run_in_float32_does_not_go_on_in_float64(interrupted: Path, tmp_path: Path, x64: None) -> None:
    directory = Path(shutil.copytree(interrupted, tmp_path / "run"))
    message = "JAX_ENABLE_X64, .* has changed since this run started"
    with pytest.raises(CheckpointError, match=message):
        run.train(CONFIG, directory, QUIET, Stop())


@pytest.mark.parametrize("end", ["interrupted", "finished"])
def test_images_replaced_under_a_run(
    end: str, request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are not trained on, nor is the run said to have finished on them; evaluating them says what they are."""
    directory = Path(shutil.copytree(request.getfixturevalue(end), tmp_path / "run"))
    monkeypatch.setattr(Experiment, "data_hash", "of other images")
    with pytest.raises(CheckpointError, match="the data set has changed since this run started; give another"):
        run.train(CONFIG, directory, QUIET, Stop())
    run.restore(CONFIG, directory, "latest", Console(quiet=True))
    assert "not the images that the run" in capsys.readouterr().out


def test_a_run_that_has_not_finished_says_so(
    interrupted: Path, finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    message = "interrupted: this run of 6 steps has not finished; its model is from step 4"
    with pytest.warns(UserWarning, match=message):
        model = dml_jax.load(interrupted)
    assert (model.step, model.finished) == (4, False)
    assert dml_jax.load(finished).finished
    assert dml_jax.load(finished, "2").finished
    assert not dml_jax.load(interrupted, "latest").finished  # which was asked for
    for source, checkpoint in ((finished, "reported"), (interrupted, "reported"), (interrupted, "4")):
        directory = Path(shutil.copytree(source, tmp_path / f"{source.name}-{checkpoint}"))
        run.export(CONFIG, directory, checkpoint, QUIET)
        warned = "has not finished" in capsys.readouterr().out
        assert warned == (source is interrupted and checkpoint == "reported")
        assert table.read(directory / "embeddings" / "test").seal.about["finished"] == (source is finished)


@pytest.mark.parametrize("name", ["results.json", "config.json", "queries.npz", "embeddings/test/ids.json"])
def test_a_finished_run_whose_files_do_not_fit_is_refused(name: str, finished: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(finished, tmp_path / "run"))
    content = (directory / name).read_bytes()
    place = max(content.rfind(digit) for digit in b"1234567")
    (directory / name).write_bytes(content[:place] + bytes([content[place] + 1]) + content[place + 1 :])
    with pytest.raises(CheckpointError, match=rf"^{directory / name}: has changed since it was written; restore it"):
        run.train(CONFIG, directory, QUIET, Stop())
    if name in ("config.json", "results.json"):
        with pytest.raises(CheckpointError, match=rf"{name}: has changed"):
            dml_jax.load(directory)


def test_too_little_memory_is_one_sentence_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "check", lambda *_: jnp.zeros((2**46,), jnp.uint8))
    message = (
        r"^data\.batch_size=\d+, evaluation\.batch_size=\d+: need more memory .* or a "
        r"larger train\.chunks$"
    )
    with pytest.raises(ConfigError, match=message):
        main.execute([f"--config={ROOT / 'configs/digits_baseline.py'}", "--mode=check"])


def test_a_finished_run_can_be_exported_again_and_continued(finished: Path, tmp_path: Path) -> None:
    directory = Path(shutil.copytree(finished, tmp_path / "run"))
    run.export(CONFIG, directory, "2", QUIET)
    run.train(CONFIG, directory, QUIET, Stop())
    assert "embeddings/train" in seal.read(directory, "run", exact=False).parts
    run.train(replace(CONFIG, train=replace(CONFIG.train, steps=8)), directory, QUIET, Stop())
    assert "checkpoints/latest/8" in seal.read(directory, "run", exact=False).parts
