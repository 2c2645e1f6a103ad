"""The TensorFlow-Datasets builder of prepared images; it writes and is read without TensorFlow."""

import contextlib
import io
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds

Example = tuple[bytes, str, str]  # an image file, its class, its name


class DeepMetricLearning(tfds.core.GeneratorBasedBuilder):
    """Images in the order of their index, split by class: features image, label and id.

    Labels are numbered over the classes of all splits; what numbers the classes of one split is the index beside it.
    """

    VERSION = tfds.core.Version("1.0.0")

    def __init__(
        self,
        *,
        examples: Mapping[str, Iterator[Example]],
        classes: Sequence[str],
        about: Mapping[str, str],
        **options: Any,
    ) -> None:
        self._examples, self._classes, self._about = examples, list(classes), about
        self.name = about["name"]  # of the folder: tensorflow_datasets would name it after the class
        super().__init__(file_format="array_record", **options)

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=self._about["description"],
            homepage=self._about["home"] or None,
            citation=self._about["citation"] or None,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(None, None, 3)),
                    "label": tfds.features.ClassLabel(names=self._classes),
                    "id": tfds.features.Text(),
                }
            ),
            disable_shuffling=True,
        )

    def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        return {split: self._generate_examples(split) for split in self._examples}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        for i, (image, label, name) in enumerate(self._examples[split]):
            yield i, {"image": io.BytesIO(image), "label": label, "id": name}


def write(
    directory: Path,
    examples: Mapping[str, Iterator[Example]],
    classes: Sequence[str],
    about: Mapping[str, str],
) -> Path:
    """Writes the splits below `directory` as array_record files; returns the folder that holds them."""
    tfds.disable_progress_bar()
    builder = DeepMetricLearning(examples=examples, classes=classes, about=about, data_dir=str(directory))
    with contextlib.redirect_stdout(io.StringIO()):
        builder.download_and_prepare()
    shutil.rmtree(directory / "downloads", ignore_errors=True)  # empty: nothing was downloaded
    return Path(builder.data_dir)


def source(directory: str, split: str) -> Any:
    """Random access to a split that was written: position -> dict with `image` as the bytes of a file."""
    builder = tfds.builder_from_directory(directory)
    return builder.as_data_source(split=split, decoders={"image": tfds.decode.SkipDecoding()})
