"""Images in Parquet files as on Hugging Face: one file, or a folder with files.

    image    struct of bytes and path, or binary: the content of an image file
    label    name of the class; or its number, with the names in the schema's metadata "huggingface"
    split    optional: train, val or test

An image or label column of another name is found if no other has this feature type of Hugging Face.
Columns of text, numbers, truth values and dates, and the path of the image, become metadata.

Without a column split, the names of files and folders give it (`data/train-00000-of-00002.parquet`;
`valid-*` and `dev-*` are validation files), if there are both training and test files. Otherwise,
and with --splits=classes, the classes are split.
"""

import json
import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from pyarrow import parquet

from dml_jax.data.files import Entry, File, Files, Scalar
from dml_jax.data.prepare import archives
from dml_jax.data.prepare.sources import Options, Recipe
from dml_jax.errors import DataError
from dml_jax.files import name_file, reading

CLASSES = "ClassLabel"  # Hugging Face's type of a column of classes
ROWS = 8  # rows decoded at a time; the page of the file that holds them is also in memory
# Bytes of a row group decoded at a time, even if each row is as large as the whole group.
BYTES = 2**26


def find(files: Files, options: Options) -> list[Entry]:
    """Copies the images of all .parquet files to `options.scratch`, to be read in any order."""
    tables = [path for path in _named(files) if files[path].size < 0 and files[path].path.is_file()]
    if not tables:
        raise DataError("found no .parquet file; give one or a folder as --source; unpack archives")
    splits, complete = _splits_in_names(tables, options)
    entries: list[Entry] = []
    for number, path in enumerate(tables):
        target = options.scratch / f"images-{number}"
        with reading(path), target.open("wb") as file:
            entries += _entries(
                files[path].path, path, file, splits[path] if complete else "", options
            )
    return entries


def doubts(files: Files, options: Options) -> list[str]:
    """Whether the names of some files give a split, but not of all."""
    splits, complete = _splits_in_names(_named(files), options)
    if complete or not any(splits.values()):
        return []
    named = next(path for path, split in splits.items() if split)
    why = "because not all of training and test have one"
    return [f"names of files such as {named!r} give no split, {why}"]


def _named(files: Files) -> list[str]:
    return [path for path in files if path.lower().endswith(".parquet")]


def _splits_in_names(paths: Sequence[str], options: Options) -> tuple[dict[str, str], bool]:
    """The split that each path names, "" for none, and whether these splits can be used."""
    splits = {path: _split_in(path, options) for path in paths}
    return splits, {"train", "test"} <= set(splits.values()) and "" not in splits.values()


def _split_in(path: str, options: Options) -> str:
    """The last split that a word of a path names; "" if there is none."""
    found = ""
    for part in re.split("[/.]", path):
        for word in (part, re.sub(r"-\d.*", "", part), *re.findall("[A-Za-z]+", part)):
            found = options.split_of(word) or found
    return found


def _features(schema: pa.Schema) -> dict[str, dict[str, Any]]:
    """The feature types of Hugging Face, by column."""
    text = (schema.metadata or {}).get(b"huggingface", b"{}")
    features = json.loads(text).get("info", {}).get("features", {})
    return {key: feature for key, feature in features.items() if isinstance(feature, dict)}


def _column(schema: pa.Schema, features: Mapping[str, dict[str, Any]], name: str, kind: str) -> str:
    typed = [key for key in schema.names if features.get(key, {}).get("_type") == kind]
    if name not in schema.names and len(typed) != 1:
        known = ", ".join(schema.names)
        raise DataError(f"has no column {name!r}; it has {known}; rename one of them")
    return name if name in schema.names else typed[0]


def image_column(schema: pa.Schema) -> str:
    """The column of the image files; raises DataError if it is missing or has another type."""
    image = _column(schema, _features(schema), "image", "Image")
    kind = content = schema.field(image).type
    if pa.types.is_struct(kind) and "bytes" in kind.names:
        content = kind.field("bytes").type
    if not (pa.types.is_binary(content) or pa.types.is_large_binary(content)):
        needed = "binary or struct<bytes: binary>: the files themselves"
        raise DataError(f"column {image!r} is {kind} instead of {needed}")
    return image


@contextmanager
def opened(source: Path | IO[bytes]) -> Iterator[tuple[parquet.ParquetFile, int]]:
    """A Parquet file and its size in bytes; DataError if its header announces too much content."""
    # Mapped: a reader's buffer would be as large as a row group or a damaged header says.
    options = {"memory_map": True, "pre_buffer": False, "page_checksum_verification": True}
    size = source.stat().st_size if isinstance(source, Path) else archives.length(source)
    with parquet.ParquetFile(source, **options) as table:
        groups = [table.metadata.row_group(group) for group in range(table.num_row_groups)]
        unpacked = sum(g.total_byte_size + archives.OVERHEAD * g.num_rows for g in groups)
        archives.check_unpacked(unpacked, size)
        yield table, size


def row_batches(
    table: parquet.ParquetFile, group: int, columns: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """The rows of a row group, a few at a time, because all may share one large value."""
    rows = min(max(1, BYTES // max(1, table.metadata.row_group(group).total_byte_size)), ROWS)
    return table.iter_batches(rows, row_groups=[group], columns=columns)


def _is_scalar(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return pa.types.is_primitive(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)


def _entries(
    source: Path, name: str, file: IO[bytes], split: str, options: Options
) -> Iterator[Entry]:
    """The images of a Parquet file, as <name>/<row>; their contents are written to `file`."""
    with opened(source) as (table, size):
        schema = table.schema_arrow
        features = _features(schema)
        image_name = image_column(schema)
        label_name = _column(schema, features, "label", CLASSES)
        types = pa.schema(
            field.with_type(pa.string()) if pa.types.is_temporal(field.type) else field
            for field in schema
            if field.name in (image_name, label_name) or _is_scalar(field.type)
        )
        labels = {k: feature for k, feature in features.items() if feature.get("_type") == CLASSES}
        rows = (
            row
            for group in range(table.num_row_groups)
            for batch in row_batches(table, group, types.names)
            for row in batch.cast(types).to_pylist()
        )
        for number, row in enumerate(rows):
            content, path = row.pop(image_name), None
            if isinstance(content, dict):
                content, path = content["bytes"], content.get("path")
            values = {key: _value(value, labels.get(key)) for key, value in row.items()}
            label, given = values.pop(label_name), values.pop("split", None) or ""
            row_split = options.split_of(str(given)) if given else split
            where = f"row {number} (from 0)"
            if given and not row_split and options.splits != "none":
                remedy = "--splits=train:valid:test says how the splits are called"
                raise DataError(f"{where}: its split is {given!r}; {remedy}")
            labelled = isinstance(label, str | int | float) and str(label).strip()
            if not content or not labelled:
                needed = "an image, and a label of text or a number of a class"
                raise DataError(f"{where}: needs {needed}")
            # Repeated values are stored only once, so a small file can hold many large images.
            archives.check_unpacked(file.tell() + len(content), size)
            packed = File(Path(file.name), file.tell(), len(content))
            with name_file(packed.path):
                if options.images:
                    file.write(content)
                else:
                    file.seek(len(content), os.SEEK_CUR)  # `file` stays empty
            metadata = {"path": path} | values if path else values
            yield Entry(f"{name}/{number}", packed, str(label), row_split, metadata)


def _value(value: Scalar, feature: Mapping[str, Any] | None) -> Scalar:
    """A cell; names replace numbers of classes, None replaces NaN, infinity and unknown numbers."""
    if isinstance(value, int) and feature:
        names = feature["names"]
        return str(names[value]) if 0 <= value < len(names) else None
    return None if isinstance(value, float) and not math.isfinite(value) else value


def recognised(files: Files) -> bool:
    return bool(_named(files))


RECIPE = Recipe(find, doubts=doubts, recognised=recognised)
