"""Small data sets written by tensorflow_datasets."""

import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds


class Pictures(tfds.core.GeneratorBasedBuilder):
    """Encoded images with the features image, label and id, in the given order."""

    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, examples: Mapping[str, Sequence[tuple[bytes, str]]], **options: Any) -> None:
        self._examples = examples
        super().__init__(file_format="array_record", **options)

    def _info(self) -> tfds.core.DatasetInfo:
        classes = sorted({name for examples in self._examples.values() for _, name in examples})
        features = {
            "image": tfds.features.Image(shape=(None, None, 3)),
            "label": tfds.features.ClassLabel(names=classes),
            "id": tfds.features.Text(),
        }
        return tfds.core.DatasetInfo(
            builder=self, features=tfds.features.FeaturesDict(features), disable_shuffling=True
        )

    def _split_generators(
        self, dl_manager: tfds.download.DownloadManager
    ) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        return {split: self._generate_examples(split) for split in self._examples}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        for i, (image, label) in enumerate(self._examples[split]):
            yield i, {"image": io.BytesIO(image), "label": label, "id": f"{split} {i}"}


def write(directory: Path, examples: Mapping[str, Sequence[tuple[bytes, str]]]) -> Path:
    """Writes (encoded image, class) by split; returns the directory of the version."""
    tfds.disable_progress_bar()
    builder = Pictures(examples, data_dir=str(directory))
    builder.download_and_prepare()
    return Path(builder.data_dir)
