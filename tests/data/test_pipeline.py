"""Batches do not depend on threads and hosts."""

import os
from pathlib import Path
from typing import Any

import grain
import numpy as np
import pytest

from dml_jax.config import Data
from dml_jax.data import cores
from dml_jax.data.prepared_data import file_reader
from dml_jax.data.split import Split
from dml_jax.errors import DataError
from tests.data.batches import assert_same, options, read_batches, small_split


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    return small_split(tmp_path_factory.mktemp("images"))


def test_shapes_types_and_labels(split: Split) -> None:
    batches = read_batches(split, options())
    assert len(batches) == 9
    for images, labels, indices in batches:
        assert images.shape == (2, 8, 12, 12, 3)
        assert (images.dtype, labels.dtype, indices.dtype) == (np.uint8, np.int32, np.int32)
        np.testing.assert_array_equal(labels, split.labels[indices])
        assert (images[0] != images[1]).any()
    assert (batches[0][0] != batches[1][0]).any()


def test_threads_are_as_many_as_the_cores(split: Split, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Unless they are given; a container's quota of processor time limits the cores."""
    asked: list[Any] = []
    read_options = grain.ReadOptions
    monkeypatch.setattr(grain, "ReadOptions", lambda **o: asked.append(o["num_threads"]) or read_options(**o))
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(7), raising=False)
    monkeypatch.setattr(cores, "CPU_QUOTA", tmp_path / "quota")
    for threads, quota in ((0, "max 100000"), (0, "350000 100000"), (0, "50000 100000"), (5, "max 100000")):
        cores.CPU_QUOTA.write_text(f"{quota}\n")
        read_batches(split, options(threads=threads), start=8)
    assert asked == [7, 3, 1, 5]


def test_reading_can_start_at_any_step(split: Split) -> None:
    assert_same(read_batches(split, options())[4:], read_batches(split, options(threads=2), start=4))


def test_hosts_share_the_batch(split: Split) -> None:
    whole = read_batches(split, options())
    halves = [read_batches(split, options(), host=host, hosts=2) for host in range(2)]
    joined = [
        (np.concatenate([a[0], b[0]], axis=1), np.concatenate([a[1], b[1]]), np.concatenate([a[2], b[2]]))
        for a, b in zip(*halves, strict=True)
    ]
    assert_same(whole, joined)


def test_images_of_different_sizes_need_a_crop(split: Split) -> None:
    with pytest.raises(DataError, match=r"pixels, .* set data\.crop"):
        read_batches(split, options(crop="none", image_size=0, resize=0))


def test_missing_image_is_named(split: Split, tmp_path: Path) -> None:
    incomplete = split._replace(read=file_reader([str(tmp_path / "gone.jpg")] * 37, Data()))
    with pytest.raises(DataError, match=r"gone\.jpg: missing"):
        read_batches(incomplete, options())
