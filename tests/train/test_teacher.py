"""Learning from another run's model: none of it is kept, resuming is exact, and what is wrong with it is said."""

import json
import shutil
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import dml_jax
from dml_jax import run, seal
from dml_jax.config import Config, Group, Train, resolve
from dml_jax.console import Console
from dml_jax.errors import CheckpointError, ConfigError, UserError
from dml_jax.methods import baseline
from dml_jax.train import experiment as experiments
from dml_jax.train import step, teacher
from dml_jax.train.distributed.stop_signals import Interrupted, Stop
from tests.train import pupil as pupils
from tests.train.experiments import small, trained, values
from tests.train.loops import StopAt, bits, train

pytestmark = pytest.mark.usefixtures("patches")
QUIET = Console(quiet=True)


WIDTH = 10_000  # dimensions of the teacher's embeddings


def network(seed: int = 0) -> Config:
    """A classifier much larger than its students."""
    method = baseline.make_config("cross_entropy", embedding_dim=WIDTH)
    return resolve(values(steps=5) | {"method": asdict(method), "seed": seed})


def pupil(directory: Path, **options: Any) -> Config:
    method = pupils.Config(teacher=str(directory), **options)
    train = Train(groups=dict.fromkeys(pupils.GROUPS, Group(1e-3)), steps=6, log_every=2, checkpoint_every=10)
    return resolve(values(steps=6) | {"method": asdict(method), "train": asdict(train)})


@pytest.fixture(scope="module")
def source(patches: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("teacher"), network())


@pytest.mark.slow
def test_a_student_from_its_first_step_to_life_without_its_teacher(source: Path, tmp_path: Path) -> None:
    own = Path(shutil.copytree(source, tmp_path / "teacher"))
    config, directory = pupil(own), tmp_path / "student"

    whole = tmp_path / "whole"
    experiment = teacher.with_teacher(experiments.build(config), QUIET)
    state = train(experiment, whole)

    with pytest.raises(Interrupted):
        run.train(config, directory, QUIET, StopAt(3))
    noted = json.loads((directory / "config.json").read_text())["teacher"]
    assert noted["step"] == 5
    trained(own, network(seed=1))
    with pytest.raises(CheckpointError, match="the teacher has changed since this run started"):
        run.train(config, directory, QUIET, Stop())
    shutil.rmtree(own)
    with pytest.raises(CheckpointError, match=r"method.teacher='.*': .*contains no run"):
        run.train(config, directory, QUIET, Stop())
    shutil.copytree(source, own)
    run.train(config, directory, QUIET, Stop())
    shutil.rmtree(own)

    assert (directory / "metrics.jsonl").read_text() == (whole / "metrics.jsonl").read_text()
    experiment, restored = run.restore(config, directory, "latest", QUIET)
    assert bits(restored) == bits(state)
    held = sum(file.stat().st_size for file in (directory / "checkpoints" / "latest" / "6").rglob("*"))
    assert held < 4 * 5 * WIDTH  # bytes of the teacher's classifier alone, in float32
    image = np.zeros((*experiment.shape, 3), np.uint8)
    assert dml_jax.load(directory).embed([image]).shape == (1, 8)
    run.train(config, directory, QUIET, Stop())  # finished already


def test_the_teacher_is_an_argument_of_the_step(source: Path) -> None:
    """Its variables are arguments of the compiled program, not constants in it."""
    experiment = teacher.with_teacher(experiments.build(pupil(source)), QUIET)
    rows = np.zeros(16, np.int32)
    batch = experiment.device_batch(np.zeros((1, 16, *experiment.shape, 3), np.uint8), rows, rows)
    leaves = jax.tree.leaves(batch)
    assert len(leaves) == 3 + len(jax.tree.leaves(experiment.teach))
    state = experiment.template()
    loss = partial(step.loss, experiment.method)
    traced = jax.make_jaxpr(loss)(state.params, state.model_state, batch, state.step, jax.random.key(0))
    assert max((np.size(constant) for constant in traced.consts), default=0) < 128


def copied_run(directory: Path, source: Path, **changes: Any) -> Path:
    """A copy of a run with changes in its `config.json`."""
    shutil.copytree(source, directory)
    facts = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(facts | changes))
    (directory / seal.MANIFEST).unlink()
    return directory


def test_teachers_that_do_not_fit(source: Path, tmp_path: Path) -> None:
    """Reported in one sentence before the work directory is kept or anything is trained."""
    (tmp_path / "empty").mkdir()
    without = copied_run(tmp_path / "without", source)
    shutil.rmtree(without / "checkpoints")
    cases: list[tuple[Config, type[UserError], str]] = [
        (pupil(tmp_path / "empty"), CheckpointError, "contains no run"),
        (pupil(without), CheckpointError, "no checkpoint in"),
        (
            pupil(copied_run(tmp_path / "other", source, data_hash="0")),
            CheckpointError,
            "was trained on different data",
        ),
        (pupil(copied_run(tmp_path / "size", source, shape=[9, 9])), CheckpointError, "was trained on different data"),
        (pupil(source, largest=8), ConfigError, f"has embeddings of {WIDTH} dimensions"),
    ]
    for config, kind, words in cases:
        with pytest.raises(kind) as caught:
            run.train(config, tmp_path / "run", QUIET, Stop())
        assert str(caught.value).startswith(f"method.teacher={config.method.teacher!r}: ")
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "run").exists()
    taught = teacher.with_teacher(experiments.build(pupil(trained(tmp_path / "fits", small(steps=5)))), QUIET)
    assert taught.teach is not None


def test_a_corrupt_checkpoint_of_a_model_is_refused(tmp_path: Path) -> None:
    """No other model than the requested one is used."""
    for number in (5, 6):
        trained(tmp_path / "run", small(steps=6), number)
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "latest" / "6" / "notes")
    with pytest.raises(
        CheckpointError,
        match=r"latest/6/.* is missing; the checkpoint is corrupt; load an earlier one with "
        r"--checkpoint=STEP$",
    ):
        dml_jax.load(tmp_path / "run")
    assert dml_jax.load(tmp_path / "run", "5").step == 5
