"""The training loop: bit-exact across every interruption; stops on signals and when it diverges."""

import json
import signal
import time
from contextlib import closing
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import Mesh

from dml_jax import seal
from dml_jax.data import pipeline
from dml_jax.errors import CheckpointError, DivergedError
from dml_jax.methods.contract import Batch
from dml_jax.train import loop, step
from dml_jax.train.distributed import device_mesh
from dml_jax.train.distributed.stop_signals import Interrupted
from dml_jax.train.embedding import Embedder
from dml_jax.train.experiment import Experiment
from tests.train.experiments import on_patches, small
from tests.train.loops import StopAt, Strict, bits, checkpoints, saved, train

pytestmark = pytest.mark.usefixtures("compiled_once")

STEPS = 20


CONFIG = small(steps=STEPS, log_every=3, evaluate_every=8, checkpoint_every=7, select="test", optimizer="adam")


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return on_patches(CONFIG)


@pytest.fixture(scope="module")
def whole(experiment: Experiment, tmp_path_factory: pytest.TempPathFactory) -> tuple[list[bytes], str]:
    """Final state and metrics of the uninterrupted run."""
    directory = tmp_path_factory.mktemp("whole")
    state = train(experiment, directory)
    return bits(state), (directory / "metrics.jsonl").read_text()


@pytest.mark.parametrize(
    "k", [pytest.param(k, marks=[] if k in (6, STEPS - 1) else [pytest.mark.slow]) for k in range(STEPS)]
)
def test_resume_is_exact(k: int, experiment: Experiment, whole: tuple[list[bytes], str], tmp_path: Path) -> None:
    with pytest.raises(Interrupted) as stopped:
        train(experiment, tmp_path, StopAt(k))
    assert stopped.value.code == 143
    assert saved(tmp_path)[-1] == k
    state = train(experiment, tmp_path)
    assert bits(state) == whole[0]
    assert (tmp_path / "metrics.jsonl").read_text() == whole[1]


def test_another_number_of_devices_is_recorded_and_equal_up_to_rounding(
    experiment: Experiment, whole: tuple[list[bytes], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(Interrupted):
        train(experiment, tmp_path, StopAt(9))
    more = experiment._replace(mesh=Mesh(np.asarray(jax.devices()[:4]), ("data",)))
    with pytest.raises(Interrupted):
        train(more, tmp_path, StopAt(7))
    line = "devices: 4 of 1 process, previously 1 of 1 process; results may now differ by rounding"
    assert line in " ".join(capsys.readouterr().out.split())
    state = train(experiment, tmp_path)
    for leaf, expected in zip(jax.tree.leaves(state), whole[0], strict=True):
        np.testing.assert_allclose(leaf, np.frombuffer(expected, leaf.dtype).reshape(leaf.shape), atol=1e-5)
    lines = (json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines())
    expected = (json.loads(line) for line in whole[1].splitlines())
    for found, wanted in zip(lines, expected, strict=True):
        assert found["loss"] == pytest.approx(wanted["loss"], rel=1e-4)


def test_a_longer_run_is_the_same_run(
    experiment: Experiment, whole: tuple[list[bytes], str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its first part ends at an evaluation, but where no line would be logged. With the last model
    as the result it may end anywhere, and its last line is not in the longer run; logging,
    evaluations, checkpoints and the number of threads change no parameter."""
    train(experiment._replace(steps=16), tmp_path / "first")
    assert bits(train(experiment, tmp_path / "first")) == whole[0]
    assert (tmp_path / "first" / "metrics.jsonl").read_text() == whole[1]
    options = {"log_every": 9, "evaluate_every": 0, "checkpoint_every": 100, "select": "last"}
    config = replace(CONFIG, train=replace(CONFIG.train, **options), data=replace(CONFIG.data, threads=3))
    other = experiment._replace(config=config)
    train(other._replace(steps=5), tmp_path / "other")
    assert bits(train(other, tmp_path / "other")) == whole[0]
    lines = (tmp_path / "other" / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [9, 18, 20]
    assert "missing" not in capsys.readouterr().out


def test_training_goes_on_while_a_checkpoint_is_written(
    experiment: Experiment, whole: tuple[list[bytes], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first checkpoint, of step 7, is not complete before the line of step 8; a stop waits for its own."""
    metrics, digests = tmp_path / "metrics.jsonl", seal.digests

    def slow(path: Path, *rest: Any) -> dict[str, Any]:
        deadline = time.monotonic() + 600
        while path.name == "7" and '"step": 8' not in metrics.read_text() and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.1)
        assert path.name != "7" or '"step": 8' in metrics.read_text()
        return digests(path, *rest)

    monkeypatch.setattr(seal, "digests", slow)
    with pytest.raises(Interrupted):
        train(experiment, tmp_path, StopAt(17))
    assert saved(tmp_path)[-1] == 17
    assert bits(train(experiment, tmp_path)) == whole[0]
    assert metrics.read_text() == whole[1]


def test_a_second_interruption_takes_nothing_away(
    experiment: Experiment, whole: tuple[list[bytes], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped again before the next step: the checkpoint it resumed from is not written again."""

    def interrupted(*arguments: Any) -> Any:
        raise Interrupted(signal.SIGTERM)

    with monkeypatch.context() as patched:
        patched.setattr(Embedder, "embed_split", interrupted)
        with pytest.raises(Interrupted):
            train(experiment, tmp_path)  # in the evaluation after 8 steps
        file = tmp_path / "checkpoints" / "latest" / "8" / seal.MANIFEST
        written = file.stat().st_mtime_ns
        with pytest.raises(Interrupted):
            train(experiment, tmp_path)  # in the same evaluation
    with pytest.raises(Interrupted):
        train(experiment, tmp_path, StopAt(0))  # after it
    assert file.stat().st_mtime_ns == written
    assert bits(train(experiment, tmp_path)) == whole[0]
    assert (tmp_path / "metrics.jsonl").read_text() == whole[1]


def test_traced_steps(experiment: Experiment, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the first step, or the one at which a run continues, to the last."""
    events: list[str] = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda directory: events.append("<"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: events.append(">"))
    place = Experiment.device_batch
    monkeypatch.setattr(Experiment, "device_batch", lambda run, *batch: events.append("s") or place(run, *batch))
    warned: list[str] = []
    console = Strict()
    monkeypatch.setattr(console, "warn", warned.append)
    for traced, stop in (((2, 3), StopAt(6)), ((5, 8), StopAt(4)), ((2, 3), StopAt(1))):
        assert warned == []
        with pytest.raises(Interrupted):
            loop.train(experiment, tmp_path, {}, console, stop, profile=traced)
    assert "".join(events) == "s<ss>sss<ss>sss"
    assert warned == ["no trace of steps 2 to 3: training resumes after step 10"]


def test_resume_from_an_older_checkpoint_truncates_the_metrics(
    experiment: Experiment, whole: tuple[list[bytes], str], tmp_path: Path
) -> None:
    """As after a kill: the newest checkpoint is older than the newest line, and that line is incomplete."""
    train(experiment, tmp_path)
    store = checkpoints(experiment, tmp_path)
    store.drop_newer("latest", 14)
    store.close()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"step": 2')
    assert bits(train(experiment, tmp_path)) == whole[0]
    assert (tmp_path / "metrics.jsonl").read_text() == whole[1]


def test_metrics_that_were_edited_are_refused(
    experiment: Experiment, whole: tuple[list[bytes], str], tmp_path: Path
) -> None:
    """Nothing is changed then; the line of the checkpoint's own step counts if a run like this has written one."""
    with pytest.raises(Interrupted):
        train(experiment, tmp_path, StopAt(12))
    file = tmp_path / "metrics.jsonl"
    text = file.read_text()
    first, *_, last = text.splitlines(keepends=True)
    assert [json.loads(line)["step"] for line in (first, last)] == [3, 12]
    loss = f'"loss": {json.loads(first)["loss"]}'
    damaged = [text.replace(loss, '"loss": 0.125'), text.removesuffix(last)]
    damaged += [text.removeprefix(first), text + last, ""]
    assert text not in damaged
    for content in damaged:
        file.write_text(content)
        with pytest.raises(
            CheckpointError,
            match=r"metrics\.jsonl: the lines up to step 12 have changed since the run wrote them"
            r"; restore it from a copy, or delete .*checkpoints to train from the start",
        ):
            train(experiment, tmp_path)
        assert (file.read_text(), saved(tmp_path)[-1]) == (content, 12)
    file.write_text(text + text.replace('"step": ', '"step": 9')[:200])
    rarely = experiment._replace(config=replace(CONFIG, train=replace(CONFIG.train, log_every=5)))
    with pytest.raises(Interrupted):
        train(rarely, tmp_path, StopAt(0))  # a run that logs no step 12
    assert [json.loads(line)["step"] for line in file.read_text().splitlines()] == [3, 6, 8, 9]
    file.write_text(text)
    assert bits(train(experiment, tmp_path)) == whole[0]
    assert file.read_text() == whole[1]


def test_checkpoints_that_are_not_deleted_change_no_bit(
    experiment: Experiment, whole: tuple[list[bytes], str], tmp_path: Path
) -> None:
    """Nor does a restart from one of them, which writes the later ones again."""
    keeping = experiment._replace(config=replace(CONFIG, train=replace(CONFIG.train, keep_every=3)))
    assert bits(train(keeping, tmp_path)) == whole[0]
    assert (tmp_path / "metrics.jsonl").read_text() == whole[1]
    assert saved(tmp_path) == [3, 6, 9, 12, 15, 18, 20]  # without 7, 8, 14 and 16
    with closing(checkpoints(keeping, tmp_path)) as store:
        before = [bits(store.restore("latest", step)[0]) for step in (3, 15)]
        store.drop_newer("latest", 6)
    assert bits(train(keeping, tmp_path)) == whole[0]
    assert (tmp_path / "metrics.jsonl").read_text() == whole[1]
    assert saved(tmp_path) == [3, 6, 9, 12, 15, 18, 20]
    with closing(checkpoints(keeping, tmp_path)) as store:
        assert [bits(store.restore("latest", step)[0]) for step in (3, 15)] == before


def _poisoned(experiment: Experiment, step: int) -> Experiment:
    """The experiment with a NaN in the loss of one step."""

    def loss(params: Any, state: Any, encoded: Any, batch: Batch, count: jax.Array, key: jax.Array) -> Any:
        value, aux = experiment.method.loss(params, state, encoded, batch, count, key)
        bad = jnp.all(batch.index[:4] == jnp.asarray(experiment.sampler.batch(step - 1)[:4], jnp.int32))
        return value + jnp.where(bad, jnp.nan, 0.0), aux

    return experiment._replace(method=experiment.method._replace(loss=loss))


def test_divergence_stops_before_the_next_checkpoint(experiment: Experiment, tmp_path: Path) -> None:
    with pytest.raises(DivergedError, match=r"at step 13: .*loss=nan"):
        train(_poisoned(experiment, 13), tmp_path)
    assert saved(tmp_path)[-1] == 8  # the evaluation at 8 found a best model


TO_INFINITY = optax.sgd(float("inf"))


@pytest.mark.parametrize("evaluate_every", [0, 1])
def test_a_state_that_is_not_finite_is_not_saved(evaluate_every: int, experiment: Experiment, tmp_path: Path) -> None:
    """Loss and gradient of the only step are finite; the update is not."""
    select = "test" if evaluate_every else "last"
    config = replace(CONFIG, train=replace(CONFIG.train, steps=1, evaluate_every=evaluate_every, select=select))
    diverging = experiment._replace(config=config, steps=1, optimizer=TO_INFINITY)
    with pytest.raises(DivergedError, match=r"at step 1: params/\S+ is not finite after the update; lower"):
        train(diverging, tmp_path)
    assert saved(tmp_path) == saved(tmp_path, "best") == []
    assert not (tmp_path / "metrics.jsonl").exists()


def test_a_finished_schedule_is_not_compiled_again(
    experiment: Experiment,
    whole: tuple[list[bytes], str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """As after a kill during the final evaluation: the last checkpoint is there, the results are not."""
    train(experiment, tmp_path)
    lines = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    recall = next(line["test/recall@1"] for line in lines if "test/recall@1" in line)
    assert f"test Recall@1 {100 * recall:.1f}%  MAP@R " in capsys.readouterr().out
    monkeypatch.setattr(Experiment, "jitted_step", lambda *_: pytest.fail("the training step was built"))
    monkeypatch.setattr(Experiment, "batches", lambda *arguments: pytest.fail("batches were read"))
    assert bits(train(experiment, tmp_path)) == whole[0]
    assert capsys.readouterr().out == f"resuming from step {STEPS}\n"


@pytest.mark.slow
def test_reload_best_continues_from_the_best_model(experiment: Experiment, tmp_path: Path) -> None:
    """At the start of the epoch, parameters and statistics become those of the best model; moments and steps do not."""
    data = replace(CONFIG.data, validation_share=0.9)  # four classes are left: epochs of 45 steps
    short = replace(CONFIG, data=data, train=replace(CONFIG.train, steps=46, evaluate_every=44))
    plain = on_patches(replace(short, train=replace(short.train, steps=45)))
    assert plain.sampler.first_step(1) == 45
    train(plain, tmp_path / "plain")
    store = checkpoints(plain, tmp_path / "plain")
    best, latest = store.restore("best"), store.restore("latest")
    store.close()
    assert (int(best[0].step), int(latest[0].step)) == (44, 45)
    expected = latest[0]._replace(params=best[0].params, model_state=best[0].model_state)
    with pipeline.training(plain.splits["train"], plain.sampler, data, seed=0, start=45, stop=46) as batches:
        batch = device_mesh.shard_batch(plain.mesh, *next(batches))
    expected, _ = jax.jit(step.build(plain.method, plain.optimizer, plain.augment))(
        expected, batch, jax.random.key(short.seed)
    )

    reloading = on_patches(replace(short, train=replace(short.train, reload_best_epochs=(1,))))
    close = partial(np.testing.assert_allclose, rtol=1e-4, atol=1e-6)  # of two programs
    jax.tree.map(close, train(reloading, tmp_path / "reloading"), expected)
