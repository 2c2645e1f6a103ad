"""Hypothesis strategies for hostile files: damage to the structure of each format."""

import bz2
import gzip
import io
import json
import lzma
import struct
import tarfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from tests.reliability.mutations import NAMES, damaged, json_file, number

TAR_TYPES = tuple(bytes([kind]) for kind in b"1234567gxLKSV")
COMPRESS: dict[str, Callable[[bytes], bytes]] = {
    "tar": bytes, "tar.gz": gzip.compress, "tar.bz2": bz2.compress, "tar.xz": lzma.compress,
}  # fmt: skip


@st.composite
def zip_file(draw: DrawFn, members: Mapping[str, bytes]) -> bytes:
    """A zip archive of some good and some hostile members."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive, warnings.catch_warnings(action="ignore"):  # names may occur twice
        for name, data in _members(draw, members):
            info = zipfile.ZipInfo("placeholder")
            info.filename = name.encode("utf-8", "replace").decode()
            info.external_attr = draw(st.sampled_from((0, 0, 0o100644, 0o120777, 0o40755, 0o20666, 0o10644))) << 16
            info.compress_type = draw(st.sampled_from((zipfile.ZIP_STORED, *[zipfile.ZIP_DEFLATED] * 3, 12, 14)))
            archive.writestr(info, data)
    return draw(st.just(file.getvalue()) | damaged(file.getvalue()))


@st.composite
def tar_file(draw: DrawFn, members: Mapping[str, bytes], ending: str) -> bytes:
    """A tar archive of some good and some hostile members, damaged before or after compression."""
    file = io.BytesIO()
    for name, data in _members(draw, members):
        info = tarfile.TarInfo(name)
        info.size = len(data)
        info.type = draw(st.sampled_from((*[tarfile.REGTYPE] * 6, *TAR_TYPES)))
        info.linkname = draw(st.sampled_from(("", *NAMES)))
        if draw(st.integers(0, 9)) == 0:
            info.size = abs(draw(number()))
        if draw(st.integers(0, 9)) == 0:
            info.pax_headers = {
                draw(st.sampled_from(("path", "size", "linkpath", "GNU.sparse.map"))): str(draw(number()))
            }
        kind = draw(st.sampled_from((tarfile.PAX_FORMAT, tarfile.GNU_FORMAT)))
        try:
            file.write(info.tobuf(kind, "utf-8", "surrogateescape") + data + bytes(-len(data) % tarfile.BLOCKSIZE))
        except ValueError:  # a size that has no representation
            continue
    data = file.getvalue() + bytes(2 * tarfile.BLOCKSIZE)
    data = draw(st.just(data) | damaged(data))
    data = COMPRESS[ending](data)
    return draw(st.just(data) | st.just(data) | damaged(data))


def _members(draw: DrawFn, good: Mapping[str, bytes]) -> list[tuple[str, bytes]]:
    hostile = st.tuples(st.sampled_from(NAMES), st.sampled_from((b"", b"x", bytes(70_000))))
    return draw(st.permutations([*good.items(), *draw(st.lists(hostile, max_size=3))]))


@st.composite
def png(draw: DrawFn, data: bytes) -> bytes:
    """A PNG with damage inside its chunks, whose checksums are valid; chunks may be missing, repeated or unknown."""
    chunks, position = [], 8
    while position < len(data):
        (length,) = struct.unpack(">I", data[position : position + 4])
        chunks.append((data[position + 4 : position + 8], data[position + 8 : position + 8 + length]))
        position += 12 + length
    chosen = draw(st.integers(0, len(chunks) - 1))
    kind, body = chunks[chosen]
    if draw(st.booleans()):
        chunks[chosen] = kind, draw(damaged(body))
    else:
        other = draw(st.sampled_from((b"tRNS", b"PLTE", b"eXIf", b"iCCP", b"zTXt", b"acTL", b"fdAT", b"gAMA", kind)))
        chunks.insert(chosen, (other, draw(st.sampled_from((b"", body, zlib.compress(bytes(10**6)))))))
    return data[:8] + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )


SHAPES = (
    "(4, 3)", "(12,)", "(4,)", "()", "(-1, 3)", "(True, 12)", "(4, 3", "(0, 3)", "(4, 0)", "(2**40,)", "4", "(4, 3.0)",
    "(4L, 3L)", "None", "[4, 3]", "(1000000000000, 3)", "(4, -3)", "((4,), 3)", "(99999999999999999999,)", "'a'",
    "(1,) * 9", "(" * 200 + ")" * 200, "()" * 3000,
)  # fmt: skip
KINDS = (
    "<f4", "<f8", "<i8", "<f2", ">f4", "|O", "|b1", "<U3", "<c8", "<M8[s]", "f4, i4", "|V0", "x", "", "<f4" * 9,
)  # fmt: skip


@st.composite
def npy(draw: DrawFn) -> bytes:
    """A `.npy` file whose header may lie."""
    text, kind = draw(st.sampled_from(SHAPES)), draw(st.sampled_from(KINDS))
    order = draw(st.sampled_from(("False", "True", "None", "2")))
    extra = draw(st.sampled_from(("", "", "", ", 'x': 1", ", 'shape': (1,)", "} {", "\0")))
    header = f"{{'descr': {kind!r}, 'fortran_order': {order}, 'shape': {text}{extra}}}".encode()
    version = draw(st.sampled_from(((1, 0), (1, 0), (2, 0), (3, 0), (0, 0), (9, 9))))
    length = struct.pack(
        "<H" if version == (1, 0) else "<I", draw(st.just(len(header) + 1) | st.sampled_from((0, 65535)))
    )
    size = draw(st.sampled_from((0, 12, 48, 96, 1000)))
    content = b"\x93NUMPY" + bytes(version) + length + header + b"\n" + b"\x00\x00\x80?" * (size // 4)
    return draw(st.just(content) | damaged(content))


@st.composite
def safetensors(draw: DrawFn, names: Sequence[str]) -> bytes:
    """A safetensors file with any types, shapes and offsets."""
    kinds = ("F32", "F32", "F16", "BF16", "F64", "I64", "BOOL", "U8", "F8_E4M3", "F8_E5M2", "F4", "X", "")
    header: dict[str, Any] = {}
    for i, name in enumerate(names):
        header[name] = {"dtype": draw(st.sampled_from(kinds)), "shape": [2, 2], "data_offsets": [16 * i, 16 * i + 16]}
    text = draw(st.just(json.dumps(header).encode()) | json_file(header))
    length = draw(st.just(len(text)) | st.just(len(text)) | number().map(lambda n: n % 2**64))
    content = (
        struct.pack("<Q", length)
        + text
        + struct.pack("<f", draw(st.sampled_from((1.0, float("nan"))))) * (4 * len(names))
    )
    return draw(st.just(content) | damaged(content))


@st.composite
def table(draw: DrawFn, rows: Sequence[Sequence[str]]) -> bytes:
    """A CSV file with hostile cells, rows or encoding."""
    cells = [list(row) for row in rows]
    for _ in range(draw(st.integers(0, 3))):
        row = draw(st.sampled_from([row for row in cells if row]))
        row[draw(st.integers(0, len(row) - 1))] = draw(
            st.sampled_from((*NAMES, "train", "query", '"', '"open', "a,b", "9" * 200_000))
        )
        if draw(st.integers(0, 9)) == 0:
            cells.insert(draw(st.integers(0, len(cells))), draw(st.sampled_from(([], ["a"], ["a"] * 9, [""] * 4))))
    separator = draw(st.sampled_from((",", ",", ",", ";", "\t")))
    end = draw(st.sampled_from(("\n", "\r\n", "\r", "\n\n")))
    coding = draw(st.sampled_from(("utf-8", "utf-8", "utf-8", "utf-16", "latin-1", "utf-8-sig")))
    content = end.join(separator.join(row) for row in cells).encode(coding, "replace")
    return draw(st.just(content) | damaged(content))
