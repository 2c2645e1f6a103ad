"""A TensorFlow Datasets builder for prepared images; neither writing nor reading needs TensorFlow."""

import contextlib
import io
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tensorflow_datasets as tfds
from array_record.python.array_record_module import ArrayRecordReader, ArrayRecordWriter
from tensorflow_datasets.proto import tf_example_pb2

from dml_jax.files import atomic_write, name_file

Example = tuple[bytes, str, str]  # encoded image, class name, image name


class DeepMetricLearning(tfds.core.GeneratorBasedBuilder):
    """Images in the order of their index, with the features image, label and id.

    The classes of all splits are numbered together. The labels of a single split are in the index file beside the
    records.
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
        self.name = about["name"]  # used as the folder name instead of the name of this class
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

    def _split_generators(
        self, dl_manager: tfds.download.DownloadManager
    ) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        return {split: self._generate_examples(split) for split in self._examples}

    def _generate_examples(self, split: str) -> Iterator[tuple[int, dict[str, Any]]]:
        for i, (image, class_name, name) in enumerate(self._examples[split]):
            yield i, {"image": io.BytesIO(image), "label": class_name, "id": name}


def write(
    directory: Path,
    examples: Mapping[str, Iterator[Example]],
    classes: Sequence[str],
    about: Mapping[str, str],
    *,
    compressed: bool = True,
) -> Path:
    """Writes the splits as array_record files; returns the folder below `directory` that contains them.

    Args:
      directory: of the data set.
      examples: by split.
      classes: names of the classes of all splits.
      about: name, home, citation and description of the data set.
      compressed: whether the records are compressed.
    """
    tfds.disable_progress_bar()
    builder = DeepMetricLearning(examples=examples, classes=classes, about=about, data_dir=str(directory))
    with contextlib.redirect_stdout(io.StringIO()), name_file(directory):
        builder.download_and_prepare()
    shutil.rmtree(directory / "downloads", ignore_errors=True)  # empty: nothing was downloaded
    if not compressed:
        for path in sorted(Path(builder.data_dir).glob("*.array_record*")):
            _decompress(path)
    return Path(builder.data_dir)


def _decompress(path: Path) -> None:
    """Rewrites a file with uncompressed records, which tensorflow_datasets has no option for."""
    with atomic_write(path) as draft:
        records = ArrayRecordReader(str(path))
        writer = ArrayRecordWriter(str(draft), "group_size:1,uncompressed")
        for i in range(records.num_records()):
            writer.write(records.read([i])[0])
        writer.close()
        records.close()


def open_split(directory: str, split: str) -> Callable[[int], bytes]:
    """A function that reads the encoded image at an index of a written split."""
    builder = tfds.builder_from_directory(directory)
    # Decoding all features of a record by tensorflow_datasets takes longer than reading it.
    records = builder.as_data_source(split=split, deserialize_method=tfds.decode.DeserializeMethod.RAW_BYTES)

    def read_image(index: int) -> bytes:
        example = tf_example_pb2.Example.FromString(records[index])
        return example.features.feature["image"].bytes_list.value[0]

    return read_image
