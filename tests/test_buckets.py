"""Runs in Google Cloud Storage, here an emulator: what is written, what is read again, and who may
write."""

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dml_jax import buckets
from dml_jax.errors import CheckpointError, PeerError
from tests import emulator

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


def test_a_process_that_another_has_replaced_writes_nothing_more(
    client: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """E.g. because the first did not answer for a while; after it was killed, the second goes on at
    once."""

    def overtaken() -> None:
        with buckets.working_copy("--workdir", URL, writing=True) as first:
            (first / "a").write_text("first")
            with buckets.working_copy("--workdir", URL, writing=True) as second:
                (second / "a").write_text("second")
                with buckets.working_copy(
                    "--workdir", URL, writing=True, active=False
                ):  # of the same run
                    pass
                buckets.push(second)
            with buckets.working_copy("--workdir", URL, writing=True):
                buckets.push(first)

    with pytest.raises(
        CheckpointError, match=rf"{URL}: process \d+ on .* has taken over this run, so this"
    ):
        overtaken()
    assert f"{URL}: taking over from process {os.getpid()} on " in capsys.readouterr().out
    assert client.cat_file("bucket/runs/one/a") == b"second"
    assert client.find("bucket/runs/one") == ["bucket/runs/one/a"]


def test_of_two_that_start_at_once_one_writes(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    both = threading.Barrier(2)
    writer = buckets._writer

    def late(copy: Any) -> str:
        found = writer(copy)
        if not found:
            both.wait()
        return found

    monkeypatch.setattr(buckets, "_writer", late)
    outcomes: list[str] = []

    def start() -> None:
        try:
            buckets._take_over("--workdir", buckets._Copy(Path("unused"), URL))
            outcomes.append("")
        except CheckpointError as error:
            outcomes.append(str(error))

    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winner, loser = sorted(outcomes)
    assert not winner
    assert loser.startswith(f"--workdir={URL}: process {os.getpid()} on ")
    assert loser.endswith(" has just started this run")


def test_an_object_that_is_lost_during_a_run() -> None:
    """May be back when the run is started again, unlike a bucket that does not exist."""
    with (
        pytest.raises(PeerError, match=rf"{URL}/latest/20: an object"),
        buckets.reaching(f"{URL}/latest/20"),
    ):
        raise FileNotFoundError


@pytest.mark.parametrize(
    ("status", "message", "kind"),
    [(503, "cannot be reached", PeerError), (403, "access is denied", CheckpointError)],
)
def test_a_bucket_that_fails(status: int, message: str, kind: type[Exception], client: Any) -> None:
    from gcsfs.retry import validate_response

    with (
        pytest.raises(kind, match=rf"--workdir={URL}: {message}"),
        buckets.working_copy("--workdir", URL, writing=False),
    ):
        validate_response(status, b"{}", "bucket/runs/one/x")


@pytest.mark.parametrize(
    ("url", "message"),
    [
        (
            "gs://none/run",
            "--workdir=gs://none/run: there is no such bucket or object; create the bucket first",
        ),
        ("gs://bucket", "give gs://bucket/directory, or a directory, where S3 may be mounted"),
        ("s3://bucket/run", "give gs://bucket/directory, or a directory"),
    ],
)
def test_buckets_that_cannot_be_used(url: str, message: str) -> None:
    with (
        pytest.raises(CheckpointError, match=message),
        buckets.working_copy("--workdir", url, writing=True) as copy,
    ):
        raise AssertionError(copy)


def test_a_directory_is_its_own(tmp_path: Path) -> None:
    with buckets.working_copy("--workdir", tmp_path, writing=True) as copy:
        assert copy == buckets.origin(copy) == tmp_path
        buckets.push(copy)
        buckets.pull(copy)
    assert not list(tmp_path.iterdir())
