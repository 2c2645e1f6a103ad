"""Data sets of tensorflow_datasets, read in place."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow_datasets as tfds

from dml_jax.config import Data
from dml_jax.data import decode, formats
from dml_jax.data.split import Split
from dml_jax.errors import DataError
from tests.data import pictures


def load(path: Path) -> dict[str, Split]:
    return formats.load(Data(name="tfds", path=str(path)))


def counts(splits: dict[str, Split]) -> dict[str, tuple[int, int]]:
    return {name: (len(split.labels), len(split.classes)) for name, split in splits.items()}


class Pictures(tfds.core.GeneratorBasedBuilder):
    """(encoded image, class) by split, as tensorflow_datasets writes them."""

    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, examples: dict[str, list[tuple[bytes, str]]], directory: Path) -> None:
        self._examples = examples
        super().__init__(file_format="array_record", data_dir=str(directory))

    def _info(self) -> tfds.core.DatasetInfo:
        names = sorted({name for rows in self._examples.values() for _, name in rows})
        features = {"image": tfds.features.Image(), "label": tfds.features.ClassLabel(names=names)}
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), disable_shuffling=True
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {
            split: ((i, {"image": io.BytesIO(image), "label": name}) for i, (image, name) in enumerate(rows))
            for split, rows in self._examples.items()
        }

    def _generate_examples(self) -> None:
        raise NotImplementedError


def tfds_directory(directory: Path, examples: dict[str, list[tuple[bytes, str]]]) -> Path:
    tfds.disable_progress_bar()
    builder = Pictures(examples, directory)
    builder.download_and_prepare()
    return Path(builder.data_dir)


def test_tfds_directories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits that share classes are merged; others keep theirs."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    rows = [(pictures.encoded(i), "abcd"[i // 2]) for i in range(8)]
    splits = load(tfds_directory(tmp_path / "own", {"train": rows[:4], "eval": rows[4:]}))
    assert counts(splits) == {"train": (4, 2), "test": (4, 2)}
    assert splits["test"].labels.tolist() == [0, 0, 1, 1]
    np.testing.assert_array_equal(splits["test"].read(3, None), decode.rgb(rows[7][0]))
    parts = {"train": rows[2:4] + rows[6:], "test": rows[:2], "validation": rows[4:6]}
    splits = load(tfds_directory(tmp_path / "three", parts))
    classes = {name: list(split.classes) for name, split in splits.items()}
    assert classes == {"train": ["1", "3"], "test": ["0"], "validation": ["2"]}
    assert list(splits["validation"].ids) == ["validation/0", "validation/1"]
    merged = load(tfds_directory(tmp_path / "shared", parts | {"validation": rows[1:3]}))
    assert counts(merged) == {"train": (3, 1), "test": (5, 2)}
    rows = [(pictures.encoded(i), f"{i % 4}") for i in range(16)]
    where = tfds_directory(tmp_path / "other", {"train": rows[:8], "test": rows[8:]})
    splits = load(where)
    assert counts(splits) == {"train": (8, 2), "test": (8, 2)}
    assert splits["train"].classes == ["0", "1"]
    assert [splits["test"].ids[0], splits["test"].ids[-1]] == ["train/2", "test/7"]
    np.testing.assert_array_equal(splits["test"].read(7, None), decode.rgb(rows[15][0]))
    info = where / "dataset_info.json"
    info.write_text(info.read_text().replace("array_record", "tfrecord"))
    with pytest.raises(DataError, match="be stored as array_record"):
        load(where)
