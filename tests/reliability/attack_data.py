"""Damaged tables, archives, images and arrays: a valid file of each kind with flipped, missing or repeated bytes."""

import functools
import gzip
import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from PIL import Image
from pyarrow import parquet as pyarrow_parquet

from dml_jax.data import decode, store, transforms
from dml_jax.data.formats import csv as csv_tables
from dml_jax.data.formats import parquet
from dml_jax.data.prepare import archives, sources
from dml_jax.evaluation import check_inputs
from tests.data import pictures
from tests.reliability import mutations
from tests.reliability.sandbox import Attack, Files

PICTURES = {f"{name}{i}.png": pictures.encoded(i, 8, 8, "PNG") for i, name in enumerate("aabbccdd")}
TABLE = "path,label,split\n" + "".join(f"{n},{n[0]},{'train' if n < 'c' else 'test'}\n" for n in PICTURES)


def _damaged(name: str, contents: Sequence[bytes], **others: bytes) -> SearchStrategy[Files]:
    """A damaged file of this name beside others, whose names have underscores in place of dots."""
    beside = {other.replace("_", "."): content for other, content in others.items()}
    return st.sampled_from(contents).flatmap(mutations.damaged).map(lambda content: {**beside, name: content})


def _written(write: Callable[[Any], object]) -> bytes:
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def _read_table(directory: Path) -> None:
    store._scan(directory, dict(sources.walk(directory)), csv_tables.RECIPE)


@functools.cache
def _parquet() -> tuple[bytes, ...]:
    """Tables in one and in several row groups, plain and compressed, with and without dictionaries."""
    columns = {"image": [{"bytes": data, "path": name} for name, data in PICTURES.items()]}
    columns |= {"label": [i // 2 for i in range(8)], "price": [None, *range(7)], "shop": ["a", "b"] * 4}
    names = {"label": {"_type": "ClassLabel", "names": ["a", "b", "c", "d"]}}
    whole = pyarrow.table(columns).replace_schema_metadata({"huggingface": json.dumps({"info": {"features": names}})})
    options: tuple[dict[str, Any], ...] = (
        {"write_page_checksum": True},
        {"compression": "zstd", "row_group_size": 3},
        {"use_dictionary": False, "compression": "none"},
    )
    return tuple(_written(functools.partial(pyarrow_parquet.write_table, whole, **each)) for each in options)


def _read_parquet(directory: Path) -> None:
    entries = parquet.find(dict(sources.walk(directory)), sources.Options(scratch=directory))
    assert all(isinstance(entry.file.read(), bytes) for entry in entries)


def _zip() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in PICTURES.items():
            archive.writestr(f"{name[0]}/{name}", content)
    return file.getvalue()


def _tar() -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        for name, content in PICTURES.items():
            info = tarfile.TarInfo(f"{name[0]}/{name}")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


ARCHIVES = st.one_of(
    _damaged("x.zip", [_zip()]),
    _damaged("x.tar", [_tar()]),
    _damaged("x.tar.gz", [gzip.compress(_tar())]),
    mutations.damaged(_tar()).map(lambda content: {"x.tar.gz": gzip.compress(content)}),
)


def _read_archive(directory: Path) -> None:
    (archive,) = directory.iterdir()
    try:
        archives.unpack(archive, directory / "unpacked")
    finally:
        assert {path.name for path in directory.iterdir()} <= {archive.name, "unpacked"}, "wrote another file"


@functools.cache
def _images() -> tuple[bytes, ...]:
    exif = Image.Exif()
    exif[decode.ORIENTATION] = 6
    colours, deep = Image.fromarray(pictures.pixels(0, 12, 16)), np.arange(192).reshape(12, 16) * 300
    plain = [("RGB", kind) for kind in decode.FORMATS]
    plain += [("L", "JPEG"), ("CMYK", "JPEG"), ("RGBA", "PNG"), ("P", "PNG"), ("1", "TIFF"), ("L", "PPM"), ("P", "GIF")]
    plain += [("RGBA", "WEBP"), ("RGBA", "TIFF"), ("P", "BMP"), ("CMYK", "TIFF"), ("LA", "PNG")]
    special: list[tuple[Image.Image, str, dict[str, Any]]] = [
        *((colours.convert(mode), kind, {}) for mode, kind in plain),
        *((Image.fromarray(deep.astype(kind)), "TIFF", {}) for kind in (np.uint16, np.int32, np.float32)),
        *((colours, kind, {"exif": exif}) for kind in ("JPEG", "PNG", "WEBP", "TIFF")),
        (colours, "JPEG", {"progressive": True}),
        (colours, "WEBP", {"lossless": True}),
        *((colours, "TIFF", {"compression": name}) for name in ("tiff_lzw", "tiff_deflate", "packbits", "jpeg")),
    ]
    return tuple(_written(functools.partial(image.save, format=kind, **options)) for image, kind, options in special)


def _read_image(directory: Path) -> None:
    pixels = decode.rgb(sources.File(directory / "a" / "x.jpg").read())
    assert pixels.dtype == np.uint8
    assert pixels.shape[2:] == (3,)
    transforms.centre_crop(transforms.resize_shorter(pixels, 16), 16)


ROWS, LABELS = _written(lambda file: np.save(file, np.eye(3))), _written(lambda file: np.save(file, np.arange(3)))


def _read_arrays(directory: Path) -> None:
    points = check_inputs.embeddings(check_inputs.load(directory / "x.npy"))
    labels = directory / "labels.txt"
    given = check_inputs.read_lines(labels) if labels.exists() else check_inputs.load(directory / "y.npy")
    check_inputs.labels(given, len(points))


ATTACKS = {
    "CSV table": Attack(
        mutations.damaged(TABLE.encode()).map(lambda content: {**PICTURES, "t.csv": content}),
        _read_table,
        lambda d: ["prepare", "--name=csv", f"--source={d}", f"--output={d}/out", "--quiet"],
    ),
    "Parquet": Attack(
        _damaged("t.parquet", _parquet()),
        _read_parquet,
        lambda d: ["prepare", "--name=parquet", f"--source={d}/t.parquet", f"--output={d}/out", "--quiet"],
    ),
    "archive": Attack(
        ARCHIVES,
        _read_archive,
        lambda d: ["prepare", "--name=folder", f"--source={next(d.iterdir())}", f"--output={d}/out", "--quiet"],
    ),
    "image": Attack(
        _damaged("a/x.jpg", _images()).map(
            lambda f: f | {"a/y.png": PICTURES["a0.png"], "b/z.png": PICTURES["b2.png"]}
        ),
        _read_image,
        lambda d: ["prepare", "--name=folder", f"--source={d}", f"--output={d}/out", "--quiet"],
        share=20,
    ),
    "embeddings (.npy)": Attack(
        _damaged("x.npy", [ROWS], y_npy=LABELS) | _damaged("y.npy", [LABELS], x_npy=ROWS),
        _read_arrays,
        lambda d: ["evaluate", f"--embeddings={d}/x.npy", f"--labels={d}/y.npy", "--quiet"],
    ),
    "labels (text)": Attack(
        _damaged("labels.txt", ["ant\nbee\nFrüchte/Apfel\n".encode()], x_npy=ROWS),
        _read_arrays,
        lambda d: ["evaluate", f"--embeddings={d}/x.npy", f"--labels={d}/labels.txt", "--quiet"],
    ),
}
