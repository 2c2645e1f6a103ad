"""The TensorFlow-Datasets builder of prepared images; it writes and is read without TensorFlow."""

import contextlib
import io
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from tensorflow_datasets.proto import tf_example_pb2

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
    *,
    compressed: bool = True,
) -> Path:
    """Writes the splits below `directory` as array_record files; returns the folder that holds them."""
    tfds.disable_progress_bar()
    builder = DeepMetricLearning(examples=examples, classes=classes, about=about, data_dir=str(directory))
    with contextlib.redirect_stdout(io.StringIO()):
        builder.download_and_prepare()
    shutil.rmtree(directory / "downloads", ignore_errors=True)  # empty: nothing was downloaded
    if not compressed:
        for path in sorted(Path(builder.data_dir).glob("*.array_record*")):
            _decompress(path)
    return Path(builder.data_dir)


def _decompress(path: Path) -> None:
    """Writes the records of a file anew as they are: tensorflow_datasets knows no way but to compress them."""
    records, fresh = ArrayRecordReader(str(path)), path.with_name("decompressed")
    writer = ArrayRecordWriter(str(fresh), "group_size:1,uncompressed")
    for i in range(records.num_records()):
        writer.write(records.read([i])[0])
    writer.close()
    records.close()
    fresh.replace(path)


def source(directory: str, split: str) -> Callable[[int], bytes]:
    """Random access to the image files of a split that was written, by position."""
    builder = tfds.builder_from_directory(directory)
    # tensorflow_datasets' own decoding of a record, its label and its name takes longer than reading it.
    records = builder.as_data_source(split=split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES)

    def image(position: int) -> bytes:
        example = tf_example_pb2.Example.FromString(records[position])
        return example.features.feature["image"].bytes_list.value[0]

    return image
