"""Parquet files in the form of Hugging Face data sets: what is read from them, and one sentence for
what cannot be."""

import datetime
import gc
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet as pq

from dml_jax.config import Data
from dml_jax.console import Console
from dml_jax.data import decode, formats
from dml_jax.data.files import File
from dml_jax.data.formats import parquet
from dml_jax.data.prepare import archives, prepare_dataset
from dml_jax.data.prepare.sources import Options
from dml_jax.data.split import Split
from dml_jax.errors import DataError
from tests.data import pictures

NAMES = ["elm", "oak", "yew", "ash"]
BAD_ROW = r"a\.parquet: row 0 \(from 0\): (needs an image, and a label|its split is) "
IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})


def content(number: int) -> bytes:
    return pictures.encoded(number, kind=("JPEG", "PNG")[number % 2])


def table(rows: range, **columns: pa.Array) -> pa.Table:
    """Rows whose image i has the content i and the class i % 4, as `datasets.Dataset.to_parquet`
    writes them."""
    images = [{"bytes": content(i), "path": f"{i}.img" if i else None} for i in rows]
    given = {
        "image": pa.array(images, IMAGE),
        "label": pa.array([i % 4 for i in rows], pa.int64()),
        **columns,
    }
    features = {
        "image": {"_type": "Image"},
        "label": {"names": NAMES, "_type": "ClassLabel"},
        "sequence": [{"dtype": "int64", "_type": "Value"}],
    }
    return pa.table(given).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )


def prepare(source: Path, output: Path, options: Options = Options()) -> dict[str, Split]:  # noqa: B008
    request = prepare_dataset.Request("parquet", (source,), output, options)
    prepare_dataset.prepare(request, parquet.RECIPE, Console(active=False))
    return formats.load(Data(name="parquet", path=str(output)))


def test_images_labels_and_metadata(tmp_path: Path) -> None:
    more = {
        "price": pa.array([None if i == 3 else i / 4 for i in range(16)]),
        "weight": pa.array([float("nan")] * 16, pa.float32()),
        "shop": pa.array(["north", "süd"] * 8).dictionary_encode(),
        "day": pa.array([datetime.date(2024, 2, 1 + i) for i in range(16)]),
        "sold": pa.array([True, False] * 8),
        "boxes": pa.array([[1, 2]] * 16),
    }
    pq.write_table(table(range(16), **more), tmp_path / "trees.parquet", row_group_size=5)
    splits = prepare(tmp_path / "trees.parquet", tmp_path / "out")
    assert {name: len(split.ids) for name, split in splits.items()} == {"train": 8, "test": 8}
    assert sorted([*splits["train"].classes, *splits["test"].classes]) == sorted(NAMES)
    for split in splits.values():
        for position, image_id in enumerate(split.ids):
            file, _, row = image_id.rpartition("/")
            i = int(row)
            assert file == "trees.parquet"
            assert split.classes[split.labels[position]] == NAMES[i % 4]
            np.testing.assert_array_equal(split.read(position, None), decode.rgb(content(i)))
            assert {name: values[position] for name, values in split.metadata.items()} == {
                "path": f"{i}.img" if i else None,
                "price": None if i == 3 else i / 4,
                "weight": None,
                "shop": "süd" if i % 2 else "north",
                "day": f"2024-02-{1 + i:02d}",
                "sold": i % 2 == 0,
            }


def test_the_split_is_named_by_files_or_a_column(tmp_path: Path) -> None:
    (tmp_path / "trees" / "data").mkdir(parents=True)

    def part(name: str, classes: tuple[int, ...], first: int) -> None:
        rows = [i for i in range(first, first + 16) if i % 4 in classes]
        whole = table(range(first, first + 16))
        pq.write_table(whole.take([i - first for i in rows]), tmp_path / "trees" / "data" / name)

    part("train-00000-of-00002.parquet", (0, 1), 0)
    part("train-00001-of-00002.parquet", (0, 1), 16)
    part("val-00000-of-00001.parquet", (0, 1), 32)
    part("test-00000-of-00001.parquet", (2, 3), 48)
    splits = prepare(tmp_path / "trees", tmp_path / "out")
    assert {name: (len(s.ids), s.classes) for name, s in splits.items()} == {
        "train": (16, ["elm", "oak"]),
        "validation": (8, ["elm", "oak"]),
        "test": (8, ["ash", "yew"]),
    }
    divided = prepare(tmp_path / "trees", tmp_path / "divided", Options(splits="classes"))
    assert {name: len(split.classes) for name, split in divided.items()} == {"train": 2, "test": 2}
    assert sum(len(split.ids) for split in divided.values()) == 32
    words = {0: "train", 1: "train", 2: "test", 3: "test"}
    column = pa.array(["val" if i in (4, 5, 8, 9) else words[i % 4] for i in range(16)])
    pq.write_table(table(range(16), split=column), tmp_path / "one.parquet")
    splits = prepare(tmp_path / "one.parquet", tmp_path / "by_column")
    assert {name: len(split.ids) for name, split in splits.items()} == {
        "train": 4,
        "validation": 4,
        "test": 8,
    }
    assert list(splits["train"].metadata) == ["path"]


def test_labelled_images_in_parquet_files_are_prepared_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written into the working directory."""
    (tmp_path / "here").mkdir()
    (tmp_path / "trees").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    pq.write_table(table(range(8)), tmp_path / "trees" / "a.parquet")
    with pytest.raises(DataError, match=r"trees: its images are in parquet files, .*--name=parq"):
        formats.class_folders([str(tmp_path / "trees")])
    assert list(Path().iterdir()) == []


def test_images_are_copied_only_if_they_are_needed(tmp_path: Path) -> None:
    pq.write_table(table(range(8)), tmp_path / "a.parquet")
    files = {"a.parquet": File(tmp_path / "a.parquet")}
    listed = parquet.find(files, Options(scratch=tmp_path, images=False))
    assert (tmp_path / "images-0").stat().st_size == 0
    assert listed == parquet.find(files, Options(scratch=tmp_path))
    assert (tmp_path / "images-0").stat().st_size == sum(entry.file.size for entry in listed)


@pytest.mark.parametrize(
    ("columns", "expected"),
    [
        ({"image": pa.array([content(0)])}, "a.parquet/0 oak"),
        (
            {"image": None, "img": pa.array([{"bytes": content(0), "path": None}], IMAGE)},
            "a.parquet/0 oak",
        ),
        ({"label": None, "species": pa.array([1])}, "a.parquet/0 oak"),
        ({"label": pa.array(["a tree"])}, "a.parquet/0 a tree"),
        ({"label": None}, r"a\.parquet: has no column 'label'; it has image; rename one of them"),
        (
            {"image": pa.array(["x.jpg"])},
            r"a\.parquet: column 'image' is string instead of binary or struct<bytes",
        ),
        ({"image": pa.array([{"bytes": None, "path": "a.jpg"}], IMAGE)}, BAD_ROW),
        ({"label": pa.array([None], pa.int64())}, BAD_ROW),
        ({"label": pa.array([4])}, BAD_ROW),
        ({"split": pa.array(["first"])}, BAD_ROW),
    ],
)
def test_columns(tmp_path: Path, columns: dict[str, Any], expected: str) -> None:
    image = pa.array([{"bytes": content(0), "path": None}], IMAGE)
    given = {"image": image, "label": pa.array([1], pa.int64())} | columns
    rows = pa.table({name: values for name, values in given.items() if values is not None})
    named = {"names": NAMES, "_type": "ClassLabel"}
    features = {"img": {"_type": "Image"}, "label": named, "species": named}
    features = {name: feature for name, feature in features.items() if name in rows.column_names}
    rows = rows.replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    pq.write_table(rows, tmp_path / "a.parquet")
    arguments = {"a.parquet": File(tmp_path / "a.parquet")}, Options(scratch=tmp_path)
    if expected.startswith("a.parquet/"):
        (entry,) = parquet.find(*arguments)
        assert (f"{entry.id} {entry.class_name}", entry.file.read()) == (expected, content(0))
    else:
        with pytest.raises(DataError, match=rf"^{expected}"):
            parquet.find(*arguments)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    pq.write_table(table(range(4)), tmp_path / "a.parquet", compression="none")
    whole = (tmp_path / "a.parquet").read_bytes()
    for damaged in (b"", whole[:4] + bytes(len(whole) - 12) + whole[-8:]):
        (tmp_path / "a.parquet").write_bytes(damaged)
        with pytest.raises(
            DataError,
            match=r"--source=.*a\.parquet: is truncated or damaged \(.*; write or copy it",
        ):
            prepare(tmp_path / "a.parquet", tmp_path / "out")
    with pytest.raises(DataError, match=r"found no \.parquet file; .* unpack archives"):
        parquet.find({"a.parquet": File(tmp_path / "x.zip", 10, 100)}, Options(scratch=tmp_path))


def test_few_rows_are_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 12 MiB in a row group, a few images of 64 KiB each are in memory at a time."""
    images = [np.random.default_rng(i).bytes(2**16) for i in range(192)]
    rows = pa.table({"image": pa.array(images), "label": pa.array(["a"] * 192)})
    options = {
        "use_dictionary": False,
        "compression": "none",
        "row_group_size": 192,
        "write_batch_size": 4,
    }
    pq.write_table(rows, tmp_path / "a.parquet", **options)
    del rows
    # The counter is of the whole process: earlier tests leave Arrow buffers in reference cycles.
    gc.collect()
    held, entry = [], parquet.Entry
    monkeypatch.setattr(
        parquet, "Entry", lambda *given: held.append(pa.total_allocated_bytes()) or entry(*given)
    )
    entries = parquet.find({"a.parquet": File(tmp_path / "a.parquet")}, Options(scratch=tmp_path))
    assert [entry.file.read() for entry in entries] == images
    assert 2**16 < max(held) < 4 * 2**20


def test_a_page_that_claims_to_be_huge(tmp_path: Path) -> None:
    """1 GiB, by the header of the first page; the pages of the file have a few hundred bytes."""
    pq.write_table(table(range(4)), tmp_path / "a.parquet", use_dictionary=False)
    damaged = bytearray((tmp_path / "a.parquet").read_bytes())
    damaged[4:15] = bytes.fromhex(
        "1500 1502 158080808008 00"
    )  # a data page, 1 byte unpacked, 2**30 bytes packed
    (tmp_path / "a.parquet").write_bytes(damaged)
    before = pa.default_memory_pool().max_memory()
    with pytest.raises(DataError, match=r"^a\.parquet: is truncated or damaged"):
        parquet.find({"a.parquet": File(tmp_path / "a.parquet")}, Options(scratch=tmp_path))
    assert pa.default_memory_pool().max_memory() < max(before, 2**28)


def test_a_bomb_is_rejected(tmp_path: Path) -> None:
    """4 GiB of images in a file of less than a megabyte."""
    repeated = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(4096, np.int32)), pa.array([bytes(2**20)])
    )
    pq.write_table(
        pa.table({"image": repeated, "label": pa.array(["a"] * 4096)}),
        tmp_path / "a.parquet",
        store_schema=False,
    )
    assert (tmp_path / "a.parquet").stat().st_size < 2**20
    with pytest.raises(DataError, match=r"^a\.parquet: unpacks to more than 200 times its size"):
        parquet.find({"a.parquet": File(tmp_path / "a.parquet")}, Options(scratch=tmp_path))
    assert (tmp_path / "images-0").stat().st_size < 300 * 2**20


def test_a_bomb_is_rejected_by_its_header(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 MiB of zeros, compressed to a few kilobytes: refused before a page is read."""
    monkeypatch.setattr(archives, "ALLOWANCE", 2**20)
    images = pa.array([bytes([i]) * 2**23 for i in range(2)])
    pq.write_table(
        pa.table({"image": images, "label": ["a", "b"]}), tmp_path / "a.parquet", compression="zstd"
    )
    assert (tmp_path / "a.parquet").stat().st_size < 2**15
    pa.default_memory_pool().release_unused()
    before = pa.total_allocated_bytes()
    with (
        pytest.raises(DataError, match=r"^unpacks to more than 200 times its size"),
        parquet.opened(tmp_path / "a.parquet"),
    ):
        raise AssertionError("opened")
    assert pa.total_allocated_bytes() < before + 2**20


def test_a_batch_holds_few_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One stored value of 1 KiB stands for every row: the header does not say how large they are
    together."""
    monkeypatch.setattr(parquet, "BYTES", 4096)
    repeated = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(50, np.int32)), pa.array([bytes(1024)])
    )
    pq.write_table(
        pa.table({"image": repeated}),
        tmp_path / "a.parquet",
        store_schema=False,
        write_statistics=False,
    )
    with parquet.opened(tmp_path / "a.parquet") as (opened, _):
        assert opened.metadata.row_group(0).total_byte_size < 2048
        batches = list(parquet.row_batches(opened, 0, ["image"]))
    assert sum(map(len, batches)) == 50
    assert max(map(len, batches)) in (2, 3)  # of about 1,100 bytes, with the header of the page
