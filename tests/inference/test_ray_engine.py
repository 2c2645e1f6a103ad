"""Embedding by actors of a real Ray cluster: rows, a killed actor, clusters and models that cannot
be used.

The cluster has two nodes of one logical core, so there are two actors.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml_jax import table
from dml_jax.errors import ConfigError
from dml_jax.inference import ray_engine
from tests import small_weights
from tests.data import pictures
from tests.processes import ROOT, environment

CHUNKS, EACH = 24, 40  # chunks, and images in each
PROGRAM = (
    f"import sys\nfrom dml_jax.__main__ import main\nfrom dml_jax.inference import bulk_embedding\n"
    f"bulk_embedding.ROWS = {EACH}\nsys.exit(main())"
)


def node(alive: bool = True, **resources: float) -> dict[str, Any]:
    return {"Alive": alive, "Resources": resources}


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([node(CPU=2.0)], (1, {"num_cpus": 2})),
        ([node(CPU=16), node(CPU=24), node(False, CPU=64), node(CPU=0)], (5, {"num_cpus": 8})),
        ([node(CPU=4.0), node(CPU=9.0)], (3, {"num_cpus": 4})),
        ([node(CPU=16), node(CPU=16, GPU=2), node(CPU=1, GPU=1)], (3, {"num_gpus": 1, "num_cpus": 0})),
    ],
)
def test_resources(nodes: list[dict[str, Any]], expected: tuple[int, dict[str, float]]) -> None:
    assert ray_engine.resources(nodes) == expected
    with pytest.raises(ConfigError, match="the cluster has neither GPUs nor CPUs"):
        ray_engine.resources([node(CPU=0.0), node(False, CPU=8.0)])


@contextmanager
def cluster(folder: Path, path: str) -> Iterator[str]:
    """The address of two nodes on this machine, whose processes find modules in `path`.

    It listens at 127.0.0.2, because Ray takes 127.0.0.1 in an address for the machine's own address
    in its network.
    """
    env = environment() | {"PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0", "MARK": str(folder)}
    code = (
        "import sys, ray; from ray.cluster_utils import Cluster\nnode = dict(num_cpus=1, "
        "node_ip_address='127.0.0.2', include_dashboard=False, object_store_memory=8 * "
        "10**7)\ncluster = Cluster(True, "
        "head_node_args=node)\ncluster.add_node(**node)\nprint('address', cluster.address, "
        "flush=True)\nsys.stdin.read()\ncluster.shutdown()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=folder, env=env, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdin
    assert process.stdout
    try:
        lines = (line.split() for line in process.stdout)
        yield next(words[1] for words in lines if words[0] == "address")
    finally:
        process.stdin.close()
        assert process.wait(60) == 0
        process.stdout.close()


def start(folder: Path, output: str, *arguments: str) -> subprocess.Popen[str]:
    command = ["-c", PROGRAM, "embed", "--model=w", f"--output={output}", "--quiet", *arguments, "t"]
    return subprocess.Popen(
        [sys.executable, *command], cwd=folder, env=environment() | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def workers(folder: Path, title: bytes) -> list[int]:
    """Processes of the cluster in `folder` with a title such as "ray::Embedder"."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            mark, name = (process / "environ").read_bytes(), (process / "cmdline").read_bytes()
        except OSError:
            continue
        if f"MARK={folder}\0".encode() in mark and name.startswith(title):
            found.append(int(process.name))
    return found


def chunks(folder: Path) -> list[Path]:
    return list(folder.glob("killed.chunks/[0-9]*/manifest.json"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model in `w` and photographs in `t`, one of them unusable."""
    pytest.importorskip("ray")
    small_weights.write(tmp_path / "w", small_weights.resnet, small_weights.RESNET)
    contents = [pictures.encoded(seed, 300, 400) for seed in range(40)]
    (tmp_path / "t").mkdir()
    for i in range(CHUNKS * EACH):
        content = contents[i % 40] + b"%d" % i if i != 50 else b"no"  # no content is embedded twice
        (tmp_path / "t" / f"{i:04d}.jpg").write_bytes(content)
    return tmp_path


@pytest.mark.slow
def test_rows_equal_those_of_one_machine_although_an_actor_is_killed(folder: Path) -> None:
    start(folder, "local").communicate(timeout=120)
    with cluster(folder, str(ROOT)) as address:
        process = start(folder, "killed", "--engine=ray", f"--address={address}")
        while len(done := chunks(folder)) < 3 or len(running := workers(folder, b"ray::MapWorker")) < 2:
            assert process.poll() is None, process.communicate()
            time.sleep(0.01)
        os.kill(running[0], signal.SIGKILL)
        assert len(done) < CHUNKS / 2
        out, err = process.communicate(timeout=300)
        assert process.returncode == 0
        assert out.endswith(f"{CHUNKS * EACH - 1} embeddings with 8 dimensions: killed\n")
        assert "left out: t/0050.jpg: not an image (JPEG, PNG, " in err
        again = start(folder, "killed", "--engine=ray", f"--address={address}").communicate(timeout=120)[0]
        assert again.startswith("continuing: 959 of 960 images are embedded already\n")
        wrong = start(folder, "killed", "--engine=ray", f"--address={address}", "--checkpoint=7")
        assert (wrong.communicate(timeout=120)[1].count("\nerror: "), wrong.returncode) == (1, 2)
    one, other = (table.read(folder / name) for name in ("local", "killed"))
    assert (other.ids, other.metadata, other.unusable) == (one.ids, one.metadata, one.unusable)
    np.testing.assert_array_equal(other.embeddings, one.embeddings)


def test_a_chunk_whose_process_dies_three_times_is_named(tmp_path: Path) -> None:
    row = {"chunk": str(tmp_path / "000004"), "root": "/photos", "names": '["a.jpg", "b.jpg"]'}
    (tmp_path / ".000004.tries").write_text("...")
    embedder = object.__new__(ray_engine.Embedder)
    problem = "a.jpg to b.jpg: 3 processes died of this chunk"
    assert embedder(row) == {"chunk": row["chunk"], "problem": problem}


@pytest.mark.slow
def test_one_machine_with_ray(folder: Path) -> None:
    """However few cores it has."""
    process = start(folder, "out", "--engine=ray")
    assert process.communicate(timeout=300)[0].endswith("embeddings with 8 dimensions: out\n")


@pytest.mark.slow
def test_clusters_that_cannot_be_used(folder: Path) -> None:
    out, err = start(folder, "out", "--engine=ray", "--address=127.0.0.1:1").communicate(timeout=120)
    assert err.startswith("error: --address=127.0.0.1:1: cannot be used (")
    assert (out, err.count("\nerror") + err.startswith("error")) == ("", 1)
