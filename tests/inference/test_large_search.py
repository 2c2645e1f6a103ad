"""Neighbours by blocks are those of one search, also with ties and 64-bit numbers."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml_jax import table
from dml_jax.console import Console
from dml_jax.errors import DataError
from dml_jax.evaluation import metrics, neighbors
from dml_jax.inference import large_search, ray_engine
from tests.inference.test_ray_engine import cluster, workers
from tests.processes import ROOT, environment
from tests.tiny_model import identity


def embeddings(rows: int, seed: int) -> np.ndarray:
    """Unit rows, a third of them copies or nearly copies of others, so that many distances are
    equal or nearly so."""
    rng = np.random.default_rng(seed)
    points = np.random.default_rng(9).normal(size=(40, 16))[rng.integers(40, size=rows)] + rng.normal(size=(rows, 16))
    copies = rng.integers(rows, size=rows // 3)
    points[: len(copies)] = points[copies] + 1e-7 * rng.integers(2, size=(len(copies), 1))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def write(directory: Path, points: np.ndarray) -> str:
    names = [str(i) for i in range(len(points))]
    table.write(directory, points, None, names, identity=identity(1))
    return str(directory / "embeddings.npy")


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_search, "MEMORY", 64 * (8 * 16 + 70 * 12))
    monkeypatch.setattr(large_search, "GALLERY_BYTES", 4 * 16 * 100)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("alone", [True, False])
def test_neighbours_of_all_blocks_are_those_of_one_search(
    tmp_path: Path, alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gallery, queries = embeddings(730, 1), embeddings(300, 2)
    found, own = large_search.array("--embeddings", write(tmp_path / "g", gallery)), None
    if not alone:
        own = large_search.array("--query_embeddings", write(tmp_path / "q", queries))
    plan = large_search.Plan(own or found, None if alone else found, 12)
    searching = gallery if alone else queries
    distances, expected = neighbors.search(searching, gallery, 12, exclude_self=alone)
    console = Console(quiet=True)

    passes = []
    blocks_of = large_search.Array.blocks

    def counted(array: Any, size: int, start: int = 0, stop: int | None = None) -> Any:
        passes.extend([array.file] if stop is None else [])
        return blocks_of(array, size, start, stop)

    monkeypatch.setattr(large_search.Array, "blocks", counted)

    def run(_: Any, function: Any, plan: Any, items: list[Any]) -> Iterator[None]:
        return (function(plan, *item) for item in items)

    monkeypatch.setattr(ray_engine, "run", run)
    blocks = list(large_search.search(plan, tmp_path / "out", None, console))
    assert len(blocks) == len(passes) == -(-len(searching) // 64)
    assert set(passes) == {found.file}
    lists = np.concatenate(blocks)
    assert lists.dtype == np.int64
    np.testing.assert_array_equal(lists, expected)
    files = sorted(tmp_path.glob("out/*/distances.npy"))
    np.testing.assert_allclose(np.concatenate([*map(np.load, files)]), distances, atol=1e-6)

    monkeypatch.setattr(ray_engine, "run", None)  # nothing is missing
    again = np.concatenate(list(large_search.search(plan, tmp_path / "out", None, console)))
    np.testing.assert_array_equal(again, expected)
    with pytest.raises(DataError, match="its source has changed since it was made; delete"):
        list(large_search.search(plan._replace(k=11), tmp_path / "out", None, console))


@pytest.mark.parametrize(
    ("rows", "width", "k", "passes"),
    [(10**7, 512, 10, 23), (10**7, 128, 10, 16), (10**7, 512, 1000, 346), (5_000, 512, 10, 5)],
)
def test_passes_over_the_gallery(rows: int, width: int, k: int, passes: int) -> None:
    """By hand: 2 GiB by 8 bytes a dimension and 70 a neighbour, at most a 16th of the queries."""
    plan = large_search.Plan(large_search.Array("x.npy", "", (rows, width)), None, k)
    assert -(-rows // plan.size) == passes


def test_numbers_have_64_bits() -> None:
    points, first = embeddings(400, 3), 2**33 + 5

    def gallery() -> Iterator[large_search.Rows]:
        for start in range(0, 400, 130):
            yield first + np.arange(start, min(400, start + 130)), points[start : start + 130]

    found, _ = large_search.nearest((first + np.arange(50), points[:50]), gallery(), 5, True, (50, 130))
    np.testing.assert_array_equal(found - first, neighbors.search(points, points, 5, exclude_self=True)[1][:50])


def test_what_cannot_be_searched(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"--embeddings=.*x\.npy: is missing"):
        large_search.array("--embeddings", str(tmp_path / "x.npy"))
    file = write(tmp_path / "a", embeddings(100, 0))
    np.save(file, embeddings(100, 1))
    with pytest.raises(DataError, match=r"embeddings\.npy: has changed since it was written"):
        large_search.array("--embeddings", file)


@pytest.mark.slow
def test_the_command_although_it_and_a_process_of_ray_are_killed(tmp_path: Path) -> None:
    """Row numbers equal one search, before and after; every block is computed by the killed or the
    second command."""
    pytest.importorskip("ray")
    points, labels = embeddings(12_000, 6), np.arange(12_000) % 3_000
    write(tmp_path / "e", points)
    np.save(tmp_path / "labels.npy", labels)
    command = [
        sys.executable,
        "-m",
        "dml_jax",
        "evaluate",
        "--engine=ray",
        "--embeddings=e/embeddings.npy",
        "--export=out",
        "--labels=labels.npy",
        "--ks=1,10",
        "--output=results.json",
    ]
    environ = environment() | {"PYTHONPATH": str(ROOT)}
    with cluster(tmp_path, str(ROOT)) as address:
        command.append(f"--address={address}")
        first = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL)
        while len(list((tmp_path / "out").glob("[0-9]*/neighbors.npy"))) < 2:
            assert first.poll() is None
            time.sleep(0.01)
        first.kill()
        first.wait()
        kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").glob("[0-9]*/neighbors.npy")}
        assert 2 <= len(kept) < 12
        second = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL)
        while not (running := workers(tmp_path, b"ray::search")):
            assert second.poll() is None
            time.sleep(0.01)
        os.kill(running[0], signal.SIGKILL)
        assert second.wait(600) == 0
    assert kept == {file: file.stat().st_mtime_ns for file in kept}
    files = sorted((tmp_path / "out").glob("[0-9]*/neighbors.npy"))
    lists = np.concatenate([*map(np.load, files)])
    _, expected = neighbors.search(points, points, 10, exclude_self=True)
    np.testing.assert_array_equal(lists, expected)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["map@r"] == pytest.approx(metrics.of_ranked_lists(expected, labels, ks=(1, 10))["map@r"])
