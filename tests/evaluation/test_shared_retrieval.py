"""Retrieval divided among processes: equal to that of one process, with a part of the work each."""

import threading
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from dml_jax.evaluation import metrics
from dml_jax.evaluation._engine import plan, tiles
from dml_jax.evaluation._engine.tiles import Share, sum_over_devices

KS = (1, 10)


@pytest.fixture
def processes(monkeypatch):
    """Runs a function once per process, in threads that exchange arrays instead of processes."""

    def run(count, function):
        barrier, arrays = threading.Barrier(count, timeout=600), [np.empty(0)] * count
        this = threading.local()

        def exchange(share, values):
            arrays[share.process] = np.ascontiguousarray(values)
            barrier.wait()
            assert len({array.shape for array in arrays}) == 1
            total = sum(array.view(np.int32) for array in arrays)
            barrier.wait()
            return total.view(values.dtype)

        def start(process):
            this.process = process
            try:
                return function()
            except BaseException:
                barrier.abort()
                raise

        monkeypatch.setattr(Share, "sum", exchange)
        monkeypatch.setattr(
            metrics, "among_processes", lambda shared: Share(this.process, count) if shared else Share()
        )
        with ThreadPoolExecutor(count) as pool:
            return list(pool.map(start, range(count)))

    return run


@pytest.mark.parametrize(
    ("tile", "changed", "options"),
    [
        (64, {}, {}),
        (64, {"SORT_ABOVE": 40}, {"metric": "euclidean", "memory": 40_000}),
        (64, {"SORT_ABOVE": 3}, {"full_ranking": True, "exclusion": "position"}),
        (64, {"SORT_ABOVE": 40}, {"gallery": True, "full_ranking": True}),
        pytest.param(320, {"SORT_ABOVE": 98}, {}, marks=pytest.mark.slow),
        (320, {}, {"two_sorted": True}),
    ],
)
def test_equal_to_one_process(processes, monkeypatch, tile, changed, options):
    """The large tile holds all rows, so that some processes have nothing to do."""
    monkeypatch.setattr(tiles, "choose_tile_size", lambda rows, mesh: tile)
    mesh = Mesh(np.array(jax.devices()[:2]), ("data",))
    for name, value in changed.items():
        monkeypatch.setattr(plan, name, value)
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(9), [1, 2, 3, 7, 17, 30, 60, 100, 80]))
    points = (rng.normal(size=(9, 16))[labels] + 1.5 * rng.normal(size=(len(labels), 16))).astype(np.float32)
    points[rng.permutation(len(points))[:40]] = points[:40]
    if options.get("two_sorted"):  # fewer than processes
        monkeypatch.setattr(plan, "SORT_ABOVE", 98)
        kept = np.r_[np.flatnonzero(labels == 7)[:2], np.flatnonzero(labels == 8)]
        options = {"gallery": points, "gallery_labels": labels}
        points, labels = points[kept], labels[kept]
    elif options.get("gallery"):
        options = options | {"gallery": points[100:], "gallery_labels": labels[100:]}
        points, labels = points[:100], labels[:100]
    totals = []

    def evaluate(shared):
        seen = []
        found = metrics.retrieval(
            points,
            labels,
            ks=KS,
            per_query=True,
            mesh=mesh,
            shared=shared,
            progress=lambda *x: seen.append(x),
            **options,
        )
        totals.append(seen[-1][1] if seen else 0)
        return found

    expected = evaluate(shared=False)
    for found in processes(3, lambda: evaluate(shared=True)):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            np.testing.assert_allclose(found[name], value, rtol=1e-12, err_msg=name)
    if tile == 64 and "SORT_ABOVE" not in changed:
        assert sum(totals[1:]) == totals[0]
        assert max(totals[1:]) <= totals[0] / 3 + 2


def test_one_process_shares_with_nobody():
    rng = np.random.default_rng(0)
    points, labels = rng.normal(size=(50, 8)).astype(np.float32), rng.integers(0, 5, 50)
    assert metrics.retrieval(points, labels, shared=True) == metrics.retrieval(points, labels)


def test_sums_of_32_bits_stay_so_with_64_bit_types() -> None:
    """What processes exchange is cut into 32 bits, whose sum must not be wider."""
    with jax.enable_x64(True):
        values = np.array([[1.5, -2.25]])  # of the one device
        total = sum_over_devices(jnp.asarray(values.view(np.int32)), Mesh(np.array(jax.devices()[:1]), ("data",)))
        np.testing.assert_array_equal(np.array(total).view(np.float64), values[0])
