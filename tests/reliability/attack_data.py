"""Hostile tables, archives, images and arrays."""

import functools
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn
from PIL import Image
from pyarrow import parquet as pyarrow_parquet

from dml_jax.data import decode, store, transforms
from dml_jax.data.formats import csv as csv_tables
from dml_jax.data.formats import parquet
from dml_jax.data.prepare import archives, sources
from dml_jax.evaluation import check_inputs
from tests.data import pictures
from tests.reliability import formats, mutations
from tests.reliability.sandbox import Attack, Files

PICTURES = {f"{name}{i}.png": pictures.encoded(i, 8, 8, "PNG") for i, name in enumerate("aabbccdd")}
ROWS = [
    ["path", "label", "split", "role"],
    *([name, name[0], "train" if name < "c" else "test", ""] for name in PICTURES),
]


def _read_table(directory: Path) -> None:
    store._scan(directory, dict(sources.walk(directory)), csv_tables.RECIPE)


@functools.cache
def _parquet() -> tuple[bytes, ...]:
    """Tables in one and in several row groups, plain and compressed, with and without dictionaries."""
    columns = {"image": [{"bytes": data, "path": name} for name, data in PICTURES.items()]}
    columns |= {"label": [i // 2 for i in range(8)], "price": [None, *range(7)], "shop": ["a", "b"] * 4}
    names = {"label": {"_type": "ClassLabel", "names": ["a", "b", "c", "d"]}}
    whole = pyarrow.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": names}})})
    contents = []
    for options in ({}, {"compression": "zstd", "row_group_size": 3}, {"use_dictionary": False, "compression": "none"}):
        file = io.BytesIO()
        pyarrow_parquet.write_table(whole, file, write_page_checksum=not options, **options)
        contents.append(file.getvalue())
    return tuple(contents)


def _read_parquet(directory: Path) -> None:
    entries = parquet.find(dict(sources.walk(directory)), sources.Options(scratch=directory))
    assert all(isinstance(entry.file.read(), bytes) for entry in entries)


ENDINGS = ("zip", "zip", *formats.COMPRESS)
MEMBERS = {f"{name[0]}/{name}": content for name, content in PICTURES.items()}


@st.composite
def _archive(draw: DrawFn) -> Files:
    ending = draw(st.sampled_from(ENDINGS))
    made = formats.zip_file(MEMBERS) if ending == "zip" else formats.tar_file(MEMBERS, ending)
    return {f"x.{draw(st.sampled_from(ENDINGS[1:]) if draw(st.integers(0, 9)) == 0 else st.just(ending))}": draw(made)}


def _read_archive(directory: Path) -> None:
    (archive,) = directory.iterdir()
    try:
        archives.unpack(archive, directory / "unpacked")
    finally:
        assert {path.name for path in directory.iterdir()} <= {archive.name, "unpacked"}, "wrote another file"


def _encoded(mode: str, kind: str, **options: Any) -> bytes:
    file, colours = io.BytesIO(), Image.fromarray(pictures.pixels(0, 12, 16))
    (colours.convert(mode) if mode[0] not in "IF" else Image.fromarray(_deep(mode))).save(file, kind, **options)
    return file.getvalue()


def _deep(mode: str) -> np.ndarray:
    kind = {"I;16": np.uint16, "I": np.int32, "F": np.float32}[mode]
    return (np.arange(192).reshape(12, 16) * 300).astype(kind)


@functools.cache
def _images() -> tuple[bytes, ...]:
    exif = Image.Exif()
    exif[decode.ORIENTATION] = 6
    plain = [("RGB", kind) for kind in decode.FORMATS] + [
        ("L", "JPEG"),
        ("CMYK", "JPEG"),
        ("RGBA", "PNG"),
        ("P", "PNG"),
    ]
    plain += [
        ("1", "TIFF"),
        ("I;16", "PNG"),
        ("I;16", "TIFF"),
        ("I", "TIFF"),
        ("F", "TIFF"),
        ("L", "PPM"),
        ("P", "GIF"),
    ]
    plain += [("RGBA", "WEBP"), ("RGBA", "TIFF"), ("P", "BMP"), ("CMYK", "TIFF"), ("LA", "PNG")]
    special = [_encoded("RGB", kind, exif=exif) for kind in ("JPEG", "PNG", "WEBP", "TIFF")]
    special += [_encoded("RGB", "JPEG", progressive=True), _encoded("RGB", "WEBP", lossless=True)]
    special += [_encoded("RGB", "TIFF", compression=name) for name in ("tiff_lzw", "tiff_deflate", "packbits", "jpeg")]
    return (*(_encoded(mode, kind) for mode, kind in plain), *special)


@st.composite
def _image(draw: DrawFn) -> Files:
    data = draw(st.sampled_from(_images()))
    changed = formats.png(data) if data[1:4] == b"PNG" and draw(st.booleans()) else mutations.damaged(data)
    return {"a/x.jpg": draw(changed), "a/y.png": PICTURES["a0.png"], "b/z.png": PICTURES["b2.png"]}


def _read_image(directory: Path) -> None:
    pixels = decode.rgb(sources.File(directory / "a" / "x.jpg").read())
    assert pixels.dtype == np.uint8
    assert pixels.shape[2:] == (3,)
    transforms.centre_crop(transforms.resize_shorter(pixels, 16), 16)


def _read_arrays(directory: Path) -> None:
    points = check_inputs.embeddings(check_inputs.load(directory / "embeddings.npy"))
    check_inputs.labels(check_inputs.load(directory / "labels.npy"), len(points))


def _three_rows() -> bytes:
    file = io.BytesIO()
    np.save(file, np.eye(3))
    return file.getvalue()


THREE_ROWS = _three_rows()


def _read_lines(directory: Path) -> None:
    lines = check_inputs.read_lines(directory / "labels.txt")
    assert check_inputs.labels(lines, len(lines)).dtype.kind == "U"


ATTACKS = {
    "CSV table": Attack(
        formats.table(ROWS).map(lambda content: {**PICTURES, "t.csv": content}),
        _read_table,
        lambda d: ["prepare", "--name=csv", f"--source={d}", f"--output={d}/out", "--quiet"],
    ),
    "Parquet": Attack(
        st.sampled_from(_parquet()).flatmap(mutations.damaged).map(lambda content: {"t.parquet": content}),
        _read_parquet,
        lambda d: ["prepare", "--name=parquet", f"--source={d}/t.parquet", f"--output={d}/out", "--quiet"],
    ),
    "archive": Attack(
        _archive(),
        _read_archive,
        lambda d: ["prepare", "--name=folder", f"--source={next(d.iterdir())}", f"--output={d}/out", "--quiet"],
    ),
    "image": Attack(
        _image(),
        _read_image,
        lambda d: ["prepare", "--name=folder", f"--source={d}", f"--output={d}/out", "--quiet"],
        share=20,
    ),
    "embeddings (.npy)": Attack(
        st.fixed_dictionaries({"embeddings.npy": formats.npy(), "labels.npy": formats.npy()}),
        _read_arrays,
        lambda d: ["evaluate", f"--embeddings={d}/embeddings.npy", f"--labels={d}/labels.npy", "--quiet"],
    ),
    "labels (text)": Attack(
        mutations.damaged("ant\nbee\nFrüchte/Apfel\n".encode()).map(
            lambda content: {"labels.txt": content, "x.npy": THREE_ROWS}
        ),
        _read_lines,
        lambda d: ["evaluate", f"--embeddings={d}/x.npy", f"--labels={d}/labels.txt", "--quiet"],
    ),
}
