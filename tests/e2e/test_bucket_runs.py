"""Whole runs in an emulator of Google Cloud Storage: killed and resumed, with a lost upload, and by
two processes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dml_jax import buckets
from tests import emulator
from tests.e2e.test_process_group import free_port
from tests.test_main import CONFIG, ROOT, TINY, environment

pytest.importorskip("gcsfs")
pytest.importorskip("gcp_storage_emulator")
pytestmark = pytest.mark.slow
RUN = [
    CONFIG,
    *TINY,
    "--config.train.steps=60",
    "--config.train.checkpoint_every=20",
    "--config.train.log_every=5",
    "--config.evaluation.controls=false",
]
SAME = ("metrics.jsonl", "queries.npz", "embeddings/test/embeddings.npy")


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    with emulator.client() as connected:
        yield connected


def start(*arguments: str, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dml_jax.main", *RUN, *arguments],
        cwd=ROOT,
        env=environment() | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finished(process: subprocess.Popen[str]) -> str:
    printed = process.communicate(timeout=900)[0]
    assert process.returncode == 0, printed
    return printed


def wait_for(client: Any, path: str) -> None:
    for _ in range(6000):
        if client.exists(path):
            return
        time.sleep(0.1)
    raise AssertionError(path)


def test_a_killed_run_continues_bit_for_bit_also_after_a_lost_upload(
    client: Any, tmp_path: Path
) -> None:
    finished(start(f"--workdir={tmp_path}"))
    first = start("--workdir=gs://bucket/killed")
    wait_for(client, "bucket/killed/checkpoints/latest/40/manifest.json")
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    lost = next(
        p
        for p in client.find("bucket/killed/checkpoints/latest/40/state")
        if "/ocdbt.process_0/d/" in p
    )
    client.rm_file(lost)
    printed = finished(start("--workdir=gs://bucket/killed"))
    assert f"taking over from process {first.pid} on " in printed
    assert "is missing; the checkpoint is corrupt; falling back" in printed
    assert "resuming from step 20" in printed
    for name in SAME:
        assert client.cat_file(f"bucket/killed/{name}") == (tmp_path / name).read_bytes(), name
    assert "already finished" in finished(start("--workdir=gs://bucket/killed"))
    assert "step 60" in finished(start("--workdir=gs://bucket/killed", "--mode=evaluate"))


def test_two_processes(client: Any) -> None:
    group = ["--workdir=gs://bucket/two", f"--coordinator=localhost:{free_port()}", "--processes=2"]
    processes = [start(*group, f"--process={i}", JAX_NUM_CPU_DEVICES="2") for i in range(2)]
    for process in processes:
        finished(process)
    lines = client.cat_file("bucket/two/metrics.jsonl").decode().splitlines()
    assert [json.loads(line)["step"] for line in lines][-1] == 60
    names = {path.removeprefix("bucket/two/") for path in client.find("bucket/two")}
    assert {"results.json", "report.html", "logs/host-0.log", "logs/host-1.log"} <= names
    assert buckets.WRITER not in names
