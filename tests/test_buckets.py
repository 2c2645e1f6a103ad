"""Runs in Google Cloud Storage, here an emulator: what is written, what is read again, and who may write."""

import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from dml_jax import buckets
from dml_jax.errors import CheckpointError
from dml_jax.train.checkpoint import Checkpoints
from tests import emulator
from tests.train.test_checkpoint import equal, state

pytest.importorskip("gcsfs")
pytest.importorskip("gcp_storage_emulator")
URL = "gs://bucket/runs/one"


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with emulator.client() as connected:
        yield connected


@pytest.fixture(autouse=True)
def empty(client: Any) -> None:
    if found := client.find("bucket/runs"):
        client.rm(found)


def test_a_run_is_kept_in_a_bucket(client: Any) -> None:
    client.pipe_file("bucket/runs/one-more/x", b"of another run")
    with buckets.working_copy("--workdir", URL, writing=True) as copy:
        assert not list(copy.iterdir())
        (copy / "metrics.jsonl").write_text("1\n")
        (copy / "figures").mkdir()
        (copy / "figures" / "a.png").write_bytes(b"picture")
        buckets.push(copy / "figures")
        (copy / "figures" / "a.png").unlink()
        (copy / "metrics.jsonl").write_text("1\n2\n")
    assert client.find("bucket/runs/one") == ["bucket/runs/one/metrics.jsonl"]
    assert not copy.exists()
    assert (buckets.read_copy("--model", f"{URL}/") / "metrics.jsonl").read_text() == "1\n2\n"


def test_a_command_that_fails_before_training_leaves_nothing(client: Any) -> None:
    def fail() -> None:
        with buckets.working_copy("--workdir", URL, writing=True) as copy:
            (copy / "config.json").touch()
            raise CheckpointError(f"{copy / 'config.json'}: wrong")

    with pytest.raises(CheckpointError, match=rf"^{URL}/config.json: wrong"):
        fail()
    assert client.find("bucket/runs") == []


@pytest.mark.slow
def test_checkpoints_and_a_lost_upload(client: Any) -> None:
    warned: list[str] = []
    for _ in range(2):  # the second time, nothing is left but what is in the bucket
        with (
            buckets.working_copy("--workdir", URL, writing=True) as copy,
            closing(Checkpoints(copy / "checkpoints", lambda: state(0), warned.append, run={})) as store,
        ):
            if not warned and not store.steps():
                for step in (10, 20):
                    (copy / "metrics.jsonl").write_text(f"{step}\n")
                    store.save("latest", state(step), {"best": step / 100})
                    assert client.cat_file("bucket/runs/one/metrics.jsonl") == f"{step}\n".encode()
                assert not any((copy / "checkpoints").rglob("*"))
                continue
            found = store.restore()
            assert found
            assert equal(found[0], 20)
            lost = next(p for p in client.find("bucket/runs/one/checkpoints/latest/20") if "/ocdbt.process_0/d/" in p)
            client.rm_file(lost)
            found = store.restore()
            assert found
            assert equal(found[0], 10)
            assert "/20: the checkpoint is corrupt" in warned[0]
            assert store.steps() == [10]


def test_one_command_at_a_time(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "RENEWAL", 0.05)
    monkeypatch.setattr(buckets, "EXPIRY", 60.0)
    with buckets.working_copy("--workdir", URL, writing=True) as first:
        with (
            pytest.raises(CheckpointError, match=rf"--workdir={URL}: another run is using it \(.*, process \d+"),
            buckets.working_copy("--workdir", URL, writing=True),
        ):
            pass
        with buckets.working_copy("--workdir", URL, writing=True, active=False):  # another process of the same run
            pass
        (first / "a").touch()
    assert client.find(f"{URL}/.lease") == []


def test_a_lease_that_is_not_renewed_expires(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "EXPIRY", 0.0)
    monkeypatch.setattr(buckets, "RENEWAL", 1000.0)

    def overtake() -> None:
        with (
            buckets.working_copy("--workdir", URL, writing=True) as first,
            buckets.working_copy("--workdir", URL, writing=True) as second,
        ):
            (second / "a").write_text("second")
            (first / "a").write_text("first")
            buckets.push(second)
            buckets.push(first)

    with pytest.raises(CheckpointError, match="another process has taken over this run"):
        overtake()
    assert client.cat_file("bucket/runs/one/a") == b"second"


def test_of_two_that_find_no_lease_one_gets_it(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)
    newest = buckets._newest_lease

    def late(*arguments: Any) -> str:
        found = newest(*arguments)
        both.wait()
        return found

    monkeypatch.setattr(buckets, "_newest_lease", late)
    outcomes: list[str] = []

    def acquire(holder: bytes) -> None:
        try:
            buckets._acquire(client, "--workdir", URL, holder)
            outcomes.append("got it")
        except CheckpointError as error:
            outcomes.append(str(error).partition(": ")[2])

    threads = [threading.Thread(target=acquire, args=(name,)) for name in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes) == ["another run is using it", "got it"]


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("gs://none/run", "--workdir=gs://none/run: there is no such bucket or object; create the bucket first"),
        ("gs://bucket", "is a whole bucket; give a directory in it"),
        ("s3://bucket/run", "checkpoints can only be written to gs:// URLs and directories"),
    ],
)
def test_buckets_that_cannot_be_used(url: str, message: str) -> None:
    with pytest.raises(CheckpointError, match=message), buckets.working_copy("--workdir", url, writing=True) as copy:
        raise AssertionError(copy)


def test_a_directory_is_its_own(tmp_path: Path) -> None:
    with buckets.working_copy("--workdir", tmp_path, writing=True) as copy:
        assert copy == buckets.origin(copy) == tmp_path
        buckets.push(copy)
        buckets.pull(copy)
    assert not list(tmp_path.iterdir())
