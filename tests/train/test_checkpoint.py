"""Checkpoints never restore wrong arrays: damage is reported and the previous one is read."""

import errno
import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax import seal
from dml_jax.errors import CheckpointError
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed import process_group
from dml_jax.train.step import TrainState


def state(step: int) -> TrainState:
    values = np.random.default_rng(step).standard_normal((40, 30)).astype(np.float32)
    return TrainState(
        step=jnp.asarray(step, jnp.int32),
        params={"w": jnp.asarray(values), "b": {"c": jnp.asarray(values[0])}},
        model_state={"queue": jnp.asarray(values[1:3]), "none": {}},
        opt_state=(jnp.asarray(step), {"mu": jnp.asarray(-values)}),
    )


class Warned(list[str]):
    def __call__(self, text: str) -> None:
        self.append(text)


@pytest.fixture
def warned() -> Warned:
    return Warned()


@pytest.fixture
def store(tmp_path: Path, warned: Warned) -> Iterator[Checkpoints]:
    opened = Checkpoints(tmp_path, lambda: state(0), warned, run={})
    for step in (10, 20):
        opened.save("latest", state(step), {"best": step / 100})
    yield opened
    opened.close()


def equal(found: TrainState, step: int) -> bool:
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(state(step)), strict=True)
    return all(np.array_equal(a, b) and a.dtype == b.dtype for a, b in pairs)


def test_round_trip(store: Checkpoints) -> None:
    found, notes = store.restore()
    assert equal(found, 20)
    assert notes == {"best": 0.2}
    assert jax.tree.structure(found) == jax.tree.structure(state(0))
    assert equal(store.restore(step=10)[0], 10)
    with pytest.raises(CheckpointError, match=r"--checkpoint=15: .*available: 10, 20"):
        store.restore(step=15)
    with pytest.raises(CheckpointError, match=r"--checkpoint=newest: must be reported, latest, best or a step"):
        store.restore_selected("newest", "last")
    reported = lambda select: int(store.restore_selected("reported", select).step)  # noqa: E731
    choices = ("last", "validation", "folds")
    assert [reported(select) for select in choices] == [20, 20, 20]
    store.save("best", state(10), {})
    assert [reported(select) for select in choices] == [20, 10, 10]
    assert int(store.restore_selected("latest", "folds").step) == 20


def test_newest_are_kept_and_best_apart(store: Checkpoints) -> None:
    store.save("best", state(20), {})
    for step in (30, 40, 50):
        store.save("latest", state(step), {})
    assert store.steps() == [30, 40, 50]
    assert store.steps("best") == [20]
    store.drop_newer("latest", 40)
    assert store.steps() == [30, 40]
    store.save("latest", state(50), {})  # the step is free again
    assert store.steps() == [30, 40, 50]


def damaged(original: Path, copy: Path, number: int, how: str) -> Path | None:
    """A copy of the checkpoints with one file of step 20 damaged; None beyond the last file."""
    shutil.copytree(original, copy)
    files = sorted(p for p in (copy / "latest" / "20").rglob("*") if p.is_file() and p.stat().st_size)
    if number >= len(files):
        return None
    content = bytearray(files[number].read_bytes())
    if how == "truncated":
        content = content[: len(content) // 2]
    else:
        content[len(content) // 2] ^= 0x10
    files[number].write_bytes(bytes(content))
    return files[number]


@pytest.mark.parametrize("how", ["truncated", "flipped"])
def test_damage_is_survived(
    how: str, store: Checkpoints, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Whichever file is damaged, step 20 is reported and step 10 is read."""
    number = 0
    while True:
        copy = tmp_path_factory.mktemp("damaged") / "copy"
        if damaged(tmp_path, copy, number, how) is None:
            break
        warned = Warned()
        other = Checkpoints(copy, lambda: state(0), warned, run={})
        found = other.restore()
        assert str(copy / "latest" / "20") in warned[0]
        assert equal(found[0], 10)
        other.save("latest", state(20), {})  # nothing is in the way of doing it again
        other.close()
        number += 1
    assert number > 5


def test_nothing_left(store: Checkpoints, tmp_path: Path) -> None:
    for step in (10, 20):
        for file in (tmp_path / "latest" / str(step) / "state").rglob("*"):
            if file.is_file():
                file.write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"latest/10.*delete it and start again"):
        store.restore()


def test_a_manifest_that_cannot_be_opened_deletes_nothing(store: Checkpoints, tmp_path: Path) -> None:
    path = tmp_path / "latest" / "20" / seal.MANIFEST
    path.unlink()
    path.mkdir()
    with pytest.raises(CheckpointError, match=r"20/manifest\.json: cannot be read"):
        store.restore()
    assert path.exists()


def test_another_process_reads_what_the_first_has_chosen(
    store: Checkpoints, tmp_path: Path, warned: Warned, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first process has found step 20 corrupt; this one is so late, or so early, that its files look otherwise."""
    chosen = iter([10, 10, -1])
    monkeypatch.setattr(process_group, "decided_by_first", lambda decide: next(chosen))
    # Reading files that the first process may be deleting.
    monkeypatch.setattr(seal, "read", None)
    assert equal(store.restore()[0], 10)
    shutil.rmtree(tmp_path / "latest" / "20")
    assert equal(store.restore()[0], 10)
    assert store.restore() is None
    assert warned == []


def failing(store: Checkpoints, monkeypatch: pytest.MonkeyPatch, *steps: int) -> None:
    """Storage fails when the checkpoints of these steps are to be marked as complete."""
    close = seal.close

    def fail(path: Path, *rest: Any, **options: Any) -> seal.Seal:
        if int(path.name) in steps:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return close(path, *rest, **options)

    monkeypatch.setattr(seal, "close", fail)


def test_the_second_failure_of_storage_in_a_row_ends_the_run(
    store: Checkpoints, warned: Warned, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(store, monkeypatch, 30, 50, 60)
    for step in (30, 40, 50, 60):
        store.save("latest", state(step), {}, background=True)
    assert len(warned) == 2
    assert "latest/30'; training continues, but ends if the next checkpoint cannot be written either" in warned[0]
    assert store.steps() == [10, 20, 40]
    with pytest.raises(OSError, match=r"Input/output error.*latest/60"):
        store.save("latest", state(70), {}, background=True)
    found = store.restore()
    assert found
    assert equal(found[0], 40)


@pytest.mark.parametrize(("kind", "background"), [("best", True), ("latest", False)])
def test_what_is_needed_at_once_may_not_fail(
    kind: str, background: bool, store: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing(store, monkeypatch, 30)
    with pytest.raises(OSError, match=rf"Input/output error.*{kind}/30"):  # noqa: PT012
        store.save(kind, state(30), {}, background=background)
        store.save("latest", state(40), {})


def test_an_earlier_one_is_there_until_a_newer_one_is_complete(
    store: Checkpoints, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    close = seal.close

    def look(path: Path, *rest: Any, **options: Any) -> seal.Seal:
        seen.append({file.parent.name for file in (tmp_path / "latest").glob(f"*/{seal.MANIFEST}")})
        return close(path, *rest, **options)

    monkeypatch.setattr(seal, "close", look)
    for step in (30, 40, 50):
        store.save("latest", state(step), {})
    assert seen == [{"10", "20"}, {"10", "20", "30"}, {"20", "30", "40"}]


def test_unfinished_ones_are_ignored(store: Checkpoints, tmp_path: Path, warned: Warned) -> None:
    """The remains of a killed save are not listed and are removed."""
    shutil.copytree(tmp_path / "latest" / "20", tmp_path / "latest" / "30.orbax-checkpoint-tmp")
    shutil.copytree(tmp_path / "latest" / "20", tmp_path / "latest" / "40")
    (tmp_path / "latest" / "40" / seal.MANIFEST).unlink()
    reader = Checkpoints(tmp_path, lambda: state(0), warned, run={}, writing=False)
    assert reader.steps() == [10, 20]
    reader.close()
    assert (tmp_path / "latest" / "40").exists()
    other = Checkpoints(tmp_path, lambda: state(0), warned, run={})
    assert other.steps() == [10, 20]
    other.save("latest", state(30), {})
    assert other.steps() == [10, 20, 30]
    other.close()


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("most", [100, 2_000])
def test_what_cannot_be_written_is_one_sentence(
    store: Checkpoints, full_disk: Any, most: int, background: bool
) -> None:
    """With a limit on the size of files, orbax or the storage layer below it fails at some point."""
    with (
        full_disk(most),
        pytest.raises(OSError, match="latest/30") as caught,
        closing(store) if background else nullcontext(),
    ):
        store.save("latest", state(30), {}, background=background)
    assert "\n" not in str(caught.value)
    assert equal(store.restore()[0], 20)


def test_a_save_in_the_background_is_complete_when_the_next_one_starts(
    store: Checkpoints, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It returns before the manifest is written, and the state may be overwritten by then."""
    written, order = threading.Event(), []

    def slow(path: Path, *rest: Any) -> dict[str, Any]:
        order.append(f"{path.parent.name}/{path.name}")
        assert written.wait(60)
        return digests(path, *rest)

    digests = seal.digests
    monkeypatch.setattr(seal, "digests", slow)
    saved = state(30)
    store.save("best", saved, {}, background=True)
    assert store.steps("best") == []
    zeros = jax.jit(partial(jax.tree.map, jnp.zeros_like), donate_argnums=0)(saved)
    assert all(not leaf.any() for leaf in jax.tree.leaves(jax.block_until_ready(zeros)))
    threading.Timer(0.2, written.set).start()
    store.save("latest", state(30), {}, background=True)
    assert store.steps("best") == [30]
    assert store.holds(30)  # waits
    assert not store.holds(31)
    assert order == ["best/30", "latest/30"]
    for kind in ("best", "latest"):
        assert equal(store.restore(kind)[0], 30)
