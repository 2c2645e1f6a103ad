"""Runs in Google Cloud Storage, here an emulator: what is written, what is read again, and who may write."""

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dml_jax import buckets, seal
from dml_jax.errors import CheckpointError, DataError, PeerError
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
    client.pipe_file("bucket/runs/one/checkpoints/latest/2/state", b"by orbax")
    with buckets.local_files("--workdir", URL) as local:
        assert [path.name for path in local.iterdir()] == [buckets.ORIGIN]
        assert buckets.origin(local / "checkpoints/latest/2/state").read_text() == "by orbax"
        (local / "metrics.jsonl").write_text("1\n")
        buckets.upload(local, "*.jsonl")
        assert client.cat_file("bucket/runs/one/metrics.jsonl") == b"1\n"
        with (local / "metrics.jsonl").open("a") as log:
            log.write("2\n")
        for name in ("manifest.json", "results.json", "z/manifest.json", "z/figure.png", ".draft"):
            (local / name).parent.mkdir(exist_ok=True)
            (local / name).write_text("now")
        buckets.upload(local, "**/*")
    assert not local.exists()
    times = {path: client.info(path)["updated"] for path in client.find("bucket/runs/one")}
    names = [path.removeprefix("bucket/runs/one/") for path in sorted(times, key=lambda path: times[path])]
    files = {"checkpoints/latest/2/state", "metrics.jsonl", "results.json", "z/figure.png"}
    assert ({*names[:-2]}, names[-2:]) == (files, ["z/manifest.json", "manifest.json"])
    copy = buckets.read_copy("--model", f"{URL}/")
    assert (copy / "metrics.jsonl").read_text() == "1\n2\n"
    assert (copy / "z" / "figure.png").read_text() == "now"


def test_the_seal_of_a_checkpoint_in_a_bucket(client: Any) -> None:
    from etils import epath

    path: Any = epath.Path(URL) / "checkpoints" / "latest" / "2"
    for name, content in (("state/a", b"abc"), ("notes/b", b"")):
        client.pipe_file(f"bucket/runs/one/checkpoints/latest/2/{name}", content)
    seal.close(path, "checkpoint", about={"run": {"x64": False}})
    assert seal.read(path, "checkpoint").about == {"run": {"x64": False}}
    client.pipe_file("bucket/runs/one/checkpoints/latest/2/state/a", b"a")
    with pytest.raises(DataError, match=rf"{URL}/.*/state/a: has changed since it was written"):
        seal.read(path, "checkpoint")
    client.rm_file("bucket/runs/one/checkpoints/latest/2/state/a")
    with pytest.raises(DataError, match=rf"{URL}/.*/state/a: is missing"):
        seal.read(path, "checkpoint")


def test_an_error_names_the_file_in_the_bucket(client: Any) -> None:
    def fail() -> None:
        with buckets.local_files("--workdir", URL) as local:
            (local / "config.json").touch()
            raise CheckpointError(f"{local / 'config.json'}: wrong")

    with pytest.raises(CheckpointError, match=rf"^{URL}/config.json: wrong"):
        fail()
    assert client.find("bucket/runs") == []


def test_a_process_that_another_has_replaced_writes_nothing_more(client: Any) -> None:
    """E.g. because the first did not answer for a while; after it was killed, the second goes on at once."""

    def overtaken() -> None:
        with buckets.local_files("--workdir", URL) as first:
            buckets.take_over(first)
            (first / "a").write_text("first")
            buckets.upload(first, "a")
            with buckets.local_files("--workdir", URL) as second:
                (second / "a").write_text("second")
                buckets.take_over(second)
                buckets.upload(second, "a")
            buckets.upload(first, "a")

    message = rf"{URL}: process {os.getpid()} on .* has taken over this run, so this process ends"
    with pytest.raises(CheckpointError, match=message):
        overtaken()
    assert client.cat_file("bucket/runs/one/a") == b"second"


def test_of_two_that_start_at_once_one_writes(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both remove the object of an earlier writer; then one creates its own, and then the other."""
    both, one, outcomes = threading.Barrier(2), threading.Lock(), list[str]()
    connected = buckets._client

    class Waiting:
        def __getattr__(self, name: str) -> Any:
            return getattr(connected(), name)

        def rm_file(self, path: str) -> None:
            with suppress(FileNotFoundError):
                connected().rm_file(path)
            both.wait()
            one.acquire()

    def start() -> None:
        try:
            with buckets.local_files("--workdir", URL) as local:
                try:
                    buckets.take_over(local)
                finally:
                    one.release()
                outcomes.append("")
        except CheckpointError as error:
            outcomes.append(str(error))

    monkeypatch.setattr(buckets, "_client", Waiting)
    threads = [threading.Thread(target=start) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    winner, loser = sorted(outcomes)
    assert not winner
    assert loser.startswith(f"{URL}: process {os.getpid()} on ")
    assert "has taken over this run" in loser


def test_an_object_that_is_lost_during_a_run() -> None:
    """May be back when the run is started again, unlike a bucket that does not exist."""
    with pytest.raises(PeerError, match=rf"{URL}/latest/20: an object"), buckets.reaching(f"{URL}/latest/20"):
        raise FileNotFoundError


@pytest.mark.parametrize(
    ("status", "message", "kind"), [(503, "cannot be reached", PeerError), (403, "access denied", CheckpointError)]
)
def test_a_bucket_that_fails(status: int, message: str, kind: type[Exception], client: Any) -> None:
    from gcsfs.retry import validate_response

    with pytest.raises(kind, match=rf"--workdir={URL}: {message}"), buckets.local_files("--workdir", URL):
        validate_response(status, b"{}", "bucket/runs/one/x")


def test_a_directory_is_its_own(tmp_path: Path) -> None:
    with buckets.local_files("--workdir", tmp_path) as local:
        assert local == buckets.origin(local) == tmp_path
        buckets.take_over(local)
        buckets.upload(local, "*")
    assert not list(tmp_path.iterdir())
