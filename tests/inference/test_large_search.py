"""Neighbours by blocks are those of one search: ids bit-equal, also with ties, unusable images and
64-bit numbers."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from dml_jax.errors import DataError
from dml_jax.evaluation import metrics, neighbors
from dml_jax.inference import embedding_shards, large_search
from dml_jax.inference.inputs import Item
from tests.inference.test_ray_engine import cluster, workers
from tests.test_main import ROOT, environment


def embeddings(rows: int, seed: int) -> np.ndarray:
    """Unit rows, a third of them copies or nearly copies of others, so that many distances are
    equal or nearly so."""
    rng = np.random.default_rng(seed)
    points = np.random.default_rng(9).normal(size=(40, 16))[
        rng.integers(40, size=rows)
    ] + rng.normal(size=(rows, 16))
    copies = rng.integers(rows, size=rows // 3)
    points[: len(copies)] = points[copies] + 1e-7 * rng.integers(2, size=(len(copies), 1))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)


def write(directory: Path, points: np.ndarray, each: int = 70) -> str:
    """Files of `each` rows, of which every seventh is an unusable image in addition."""
    directory.mkdir()
    for number, start in enumerate(range(0, len(points), each)):
        part = points[start : start + each]
        bad = np.zeros(len(part) + len(part) // 7, bool)
        bad[7 : 7 + 8 * (len(part) // 7) : 8] = True
        values = np.zeros((len(bad), points.shape[1]), np.float32)
        values[~bad] = part
        embedding_shards.write_part(
            directory / f"{number:06d}.parquet",
            [Item(f"{start + i}", Path()) for i in range(len(bad))],
            values,
            ["damaged" if each else None for each in bad],
        )
    (directory / "_plan.json").write_text("{}")
    return str(directory)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_search, "QUERIES", (64, 64))
    monkeypatch.setattr(large_search, "GALLERY_BYTES", 4 * 16 * 100)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("alone", [True, False])
def test_neighbours_of_all_blocks_are_those_of_one_search(tmp_path: Path, alone: bool) -> None:
    gallery, queries = embeddings(730, 1), embeddings(300, 2)
    plan = large_search.Plan(
        large_search.table(
            write(tmp_path / "q", gallery if alone else queries), "--query_embeddings"
        ),
        None if alone else large_search.table(write(tmp_path / "g", gallery), "--embeddings"),
        12,
    )
    searching = gallery if alone else queries
    distances, expected = neighbors.search(searching, gallery, 12, exclude_self=alone)
    found = []
    with embedding_shards.opened(tmp_path / "out", plan.description()) as out:
        assert out.count == -(-len(searching) // 64)
        for number in out.missing():
            plan.search(number, out.file(number))  # type: ignore[arg-type]
            found.append(pq.read_table(out.file(number)))
        assert out.missing() == []
    whole = pa.concat_tables(found)
    lists = np.array(whole["neighbors"].to_pylist())
    assert lists.dtype == np.int64
    np.testing.assert_array_equal(lists, expected)
    np.testing.assert_allclose(np.array(whole["distances"].to_pylist()), distances, atol=1e-6)


def test_numbers_have_64_bits() -> None:
    points, first = embeddings(400, 3), 2**33 + 5

    def gallery() -> Iterator[large_search.Rows]:
        for start in range(0, 400, 130):
            yield first + np.arange(start, min(400, start + 130)), points[start : start + 130]

    found, _ = large_search.nearest(
        (first + np.arange(50), points[:50]), gallery(), 5, True, (50, 130)
    )
    np.testing.assert_array_equal(
        found - first, neighbors.search(points, points, 5, exclude_self=True)[1][:50]
    )


def test_what_cannot_be_searched(tmp_path: Path) -> None:
    with pytest.raises(
        DataError,
        match=r"^--embeddings=.*: holds no Parquet files; give the directory NAME\.parquet",
    ):
        large_search.table(str(tmp_path), "--embeddings")
    write(tmp_path / "a", embeddings(100, 0))
    pq.write_table(
        pa.table({"embedding": pa.array([[1.0]], pa.list_(pa.float32(), 1))}),
        tmp_path / "a" / "x.parquet",
    )
    with pytest.raises(DataError, match=r"holds embeddings of \[1, 16\] dimensions"):
        large_search.table(str(tmp_path / "a"), "--embeddings")
    (tmp_path / "a" / "x.parquet").write_bytes(b"PAR1")
    with pytest.raises(DataError, match=r"x\.parquet: is truncated or damaged"):
        large_search.table(str(tmp_path / "a"), "--embeddings")


@pytest.mark.slow
def test_the_command_although_it_and_a_process_of_ray_are_killed(tmp_path: Path) -> None:
    """Row numbers equal one search, before and after; every block is computed by the killed or the
    second command."""
    pytest.importorskip("ray")
    points, labels = embeddings(12_000, 6), np.arange(12_000) % 3_000
    write(tmp_path / "e.parquet", points, 2_000)
    np.save(tmp_path / "labels.npy", labels)
    command = [
        sys.executable,
        "-m",
        "dml_jax",
        "evaluate",
        "--engine=ray",
        "--embeddings=e.parquet",
        "--export=out",
        "--labels=labels.npy",
        "--ks=1,10",
        "--output=results.json",
    ]
    environ = environment() | {"PYTHONPATH": str(ROOT)}
    with cluster(tmp_path, str(ROOT)) as address:
        command.append(f"--address={address}")
        first = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL)
        while len(list((tmp_path / "out").glob("[0-9]*.parquet"))) < 2:
            assert first.poll() is None
            time.sleep(0.01)
        first.kill()
        first.wait()
        kept = {file: file.stat().st_mtime_ns for file in (tmp_path / "out").glob("[0-9]*.parquet")}
        assert 2 <= len(kept) < 12
        second = subprocess.Popen(command, cwd=tmp_path, env=environ, stdout=subprocess.DEVNULL)
        while not (running := workers(tmp_path, b"ray::search")):
            assert second.poll() is None
            time.sleep(0.01)
        os.kill(running[0], signal.SIGKILL)
        assert second.wait(600) == 0
    assert kept == {file: file.stat().st_mtime_ns for file in kept}
    files = sorted((tmp_path / "out").glob("[0-9]*.parquet"))
    lists = np.concatenate(
        [np.array(pq.read_table(file)["neighbors"].to_pylist()) for file in files]
    )
    _, expected = neighbors.search(points, points, 10, exclude_self=True)
    np.testing.assert_array_equal(lists, expected)
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["map@r"] == pytest.approx(
        metrics.of_ranked_lists(expected, labels, ks=(1, 10))["map@r"]
    )
