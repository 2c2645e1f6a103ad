"""Splits: written to a file, and drawn again."""

import os
from pathlib import Path

import numpy as np
import pytest

from dml_jax.config import Data
from dml_jax.data import formats
from dml_jax.data.split import Split, read_splits, redrawn, unread, write_splits
from dml_jax.errors import ConfigError, DataError


def test_metadata_keeps_any_name(tmp_path: Path) -> None:
    labels = np.array([0, 1, 0], np.int64)
    files = ["", os.fsdecode(b"\xff"), "漢字"]
    odd = Split(labels, ["a\nb", "ü,\"'", "\0"], unread, ["x", "ÿ"], files=files)
    splits = {"train": odd, "test": Split(labels, ["1", "2", "3"], unread, ["a", "b"])}
    write_splits(tmp_path / "i.json", splits)
    loaded = read_splits(tmp_path / "i.json")
    assert loaded.keys() == splits.keys()
    for name, split in splits.items():
        np.testing.assert_array_equal(loaded[name].labels, split.labels)
        assert (list(loaded[name].ids), loaded[name].classes) == (split.ids, split.classes)
        assert list(loaded[name].files) == list(split.files)
    (tmp_path / "i.json").write_bytes((tmp_path / "i.json").read_bytes()[:200])
    with pytest.raises(DataError, match=r"i\.json: is truncated or damaged"):
        read_splits(tmp_path / "i.json")


def test_another_draw_of_the_classes() -> None:
    """As many classes in each split, none in both, and every image with its class."""
    usual = formats.load(Data(name="digits"))
    drawn = formats.load(Data(name="digits", class_split=3))
    names = {name: set(split.classes) for name, split in drawn.items()}
    assert names["train"] | names["test"] == {*usual["train"].classes, *usual["test"].classes}
    assert not names["train"] & names["test"]
    other = formats.load(Data(name="digits", class_split=4))["train"]
    assert names["train"] != set(other.classes)
    counts = {name: len(split.classes) for name, split in usual.items()}
    assert {name: len(split.classes) for name, split in drawn.items()} == counts
    of_image = {image: (split, i) for split in usual.values() for i, image in enumerate(split.ids)}
    for split in drawn.values():
        assert list(np.unique(split.labels)) == list(range(len(split.classes)))
        for i in range(0, len(split.labels), 50):
            other, j = of_image[split.ids[i]]
            assert split.classes[split.labels[i]] == other.classes[other.labels[j]]
            np.testing.assert_array_equal(split.read(i, None), other.read(j, None))
    with pytest.raises(ConfigError, match=r"class_split=1: the data set has the split gallery"):
        redrawn({**usual, "gallery": usual["test"]}, 1)
