"""Whole runs in an emulator of Google Cloud Storage: killed, resumed in spite of a lost upload and
made longer, and by two processes."""

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import emulator, processes
from tests.processes import CONFIG, TINY, free_port

pytest.importorskip("gcsfs")
pytest.importorskip("gcp_storage_emulator")
pytestmark = pytest.mark.slow
RUN = [CONFIG, *TINY, "--config.train.checkpoint_every=20", "--config.train.log_every=5"]
RUN += ["--config.evaluation.controls=false", "--config.train.schedule=constant"]  # which a longer run continues
SAME = ("metrics.jsonl", "queries.npz", "embeddings/test/embeddings.npy")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with emulator.client() as connected:
        yield connected


def start(*arguments: str, steps: int = 60, **variables: str) -> subprocess.Popen[str]:
    return processes.start(*RUN, f"--config.train.steps={steps}", *arguments, **variables)


def finished(process: subprocess.Popen[str]) -> str:
    printed = process.communicate(timeout=900)
    assert process.returncode == 0, printed
    return "".join(printed)


def kill_after(client: Any, path: str, process: subprocess.Popen[str]) -> None:
    """Kills a process once an object is in the bucket."""
    while not client.exists(path):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.1)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()


def test_a_run_killed_resumed_and_made_longer_is_that_of_a_local_disk_bit_for_bit(client: Any, tmp_path: Path) -> None:
    finished(start(f"--workdir={tmp_path}", steps=90))
    first = start("--workdir=gs://bucket/killed")
    kill_after(client, "bucket/killed/checkpoints/latest/40/manifest.json", first)
    written = client.find("bucket/killed/checkpoints/latest/40/state")
    client.rm_file(next(path for path in written if "/ocdbt.process_0/d/" in path))
    printed = finished(start("--workdir=gs://bucket/killed"))
    assert "is missing; the checkpoint is corrupt; falling back" in printed
    assert "resuming from step 20" in printed
    finished_at = client.info("bucket/killed/results.json")["updated"]
    assert "already finished" in finished(start("--workdir=gs://bucket/killed"))
    assert "step 60" in finished(start("--workdir=gs://bucket/killed", "--mode=evaluate"))
    assert client.info("bucket/killed/results.json")["updated"] == finished_at

    longer = start("--workdir=gs://bucket/killed", steps=90)
    kill_after(client, "bucket/killed/checkpoints/latest/80/manifest.json", longer)
    assert not client.exists("bucket/killed/manifest.json")  # of the shorter run
    finished(start("--workdir=gs://bucket/killed", steps=90))
    for name in SAME:
        assert client.cat_file(f"bucket/killed/{name}") == (tmp_path / name).read_bytes(), name
    assert "already finished" in finished(start("--workdir=gs://bucket/killed", steps=90))
    assert not client.exists("bucket/killed/starts.json")


def test_two_processes(client: Any) -> None:
    group = ["--workdir=gs://bucket/two", f"--coordinator=localhost:{free_port()}", "--processes=2"]
    both = [start(*group, f"--process={i}", JAX_NUM_CPU_DEVICES="2") for i in range(2)]
    for process in both:
        finished(process)
    lines = client.cat_file("bucket/two/metrics.jsonl").decode().splitlines()
    assert [json.loads(line)["step"] for line in lines][-1] == 60
    names = {path.removeprefix("bucket/two/") for path in client.find("bucket/two")}
    assert {"results.json", "report.html", "logs/host-0.log"} <= names


def test_a_choice_killed_in_a_fold_is_that_of_a_local_disk(client: Any, tmp_path: Path) -> None:
    options = ["train.select=folds", "method.init=whitened", "method.embedding_dim=0"]
    options = [f"--config.{option}" for option in options]
    finished(start(*options, f"--workdir={tmp_path}"))
    first = start(*options, "--workdir=gs://bucket/folds")
    kill_after(client, "bucket/folds/folds/1/checkpoints/latest/20/manifest.json", first)
    assert "resuming from step 20" in finished(start(*options, "--workdir=gs://bucket/folds"))
    for name in SAME:
        assert client.cat_file(f"bucket/folds/{name}") == (tmp_path / name).read_bytes(), name
    assert client.find("bucket/folds/folds") == []
