"""Hypothesis strategies for hostile input: damage to bytes and to JSON."""

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy

SIZES = (0, 1, 2, 7, 127, 128, 255, 256, 2**15, 2**16 - 1, 2**24, 2**31 - 1, 2**31, 2**32 - 1, 2**53, 2**63 - 1, 2**63)
NAMES = (
    "a.jpg", "b/c.jpg", "../x", "/etc/x", "..", ".", "", "a/../../x", "C:\\x", "\\\\host\\x", "a\\..\\..\\x", "~root/x",
    "a" * 300, "a/" * 600 + "x", "nul\0x", "line\nbreak", "\x1b[2J", "\udcff", "ä ö", "con", "$(touch x)", "<script>",
    "./a.jpg", "A.JPG", "a.jpg/b", ".hidden", "-rf", "%s%n", "{0}", "\u202egpj.x", "data.csv", "images/",
)  # fmt: skip
HOSTILE_JSON: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 3, 10**20, -(2**63), 1e308, 0.5, float("nan"), float("inf"), "", "x", "1", "../../x"),
    *("/etc/passwd", "~nobody-here/x", "nul\0x", "\ud800", "\x1b[2J", "x" * 5000, [], {}, [[]], [0, -1], [1e9, 1e9]),
    *([10**20], ["a", 1], {"a": None}, {"name": "hist"}, {"": {"": {}}}),
)
DEEP = b"[" * 5000


def number(sizes: Sequence[int] = SIZES) -> SearchStrategy[int]:
    """A number at the border of a type, often off by one or negative."""
    return st.tuples(st.sampled_from(sizes), st.sampled_from((0, 0, -1, 1)), st.sampled_from((1, 1, -1))).map(
        lambda drawn: (drawn[0] + drawn[1]) * drawn[2]
    )


@st.composite
def damaged(draw: DrawFn, data: bytes, most: int = 3) -> bytes:
    """The bytes after a few edits: flipped bits, other numbers, parts removed, repeated, moved or inserted."""
    edited = bytearray(data)
    for _ in range(draw(st.integers(1, most))):
        start = draw(st.integers(0, max(len(edited) - 1, 0)))
        end = min(start + draw(st.sampled_from((1, 2, 4, 8, 30, 500))), len(edited))
        match draw(st.sampled_from(("flip", "number", "cut", "remove", "repeat", "insert", "zero"))):
            case "flip" if edited:
                edited[start] ^= 1 << draw(st.integers(0, 7))
            case "number":
                size, order = draw(st.sampled_from((1, 2, 4, 8))), draw(st.sampled_from(("little", "big")))
                value = draw(number()) % 2 ** (8 * size)
                edited[start : start + size] = value.to_bytes(size, order)  # type: ignore[arg-type]
            case "cut":
                del edited[start:]
            case "remove":
                del edited[start:end]
            case "repeat":
                edited[start:end] = edited[start:end] * draw(st.sampled_from((2, 3, 50)))
            case "insert":
                edited[start:start] = draw(st.binary(max_size=20))
            case "zero":
                edited[start:end] = bytes(end - start)
    return bytes(edited)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, Mapping) else enumerate(value[:4]) if isinstance(value, list) else ()
    return [path, *(place for key, entry in inner for place in _places(entry, (*path, key)))]


@st.composite
def json_value(draw: DrawFn, value: Any) -> Any:
    """A JSON value with one or two entries removed, renamed or replaced."""
    value = json.loads(json.dumps(value))
    for _ in range(draw(st.integers(1, 2))):
        path = draw(st.sampled_from(_places(value)))
        if not path:
            if draw(st.integers(0, 9)) == 0:
                value = copy.deepcopy(draw(st.sampled_from(HOSTILE_JSON)))
            continue
        holder = value
        for key in path[:-1]:
            holder = holder[key]
        what = draw(st.sampled_from(("replace", "replace", "number", "remove", "rename")))
        if what == "replace":
            holder[path[-1]] = copy.deepcopy(draw(st.sampled_from(HOSTILE_JSON)))
        elif what == "number":
            holder[path[-1]] = draw(number())
        elif what == "rename" and isinstance(holder, dict):
            holder[draw(st.sampled_from(NAMES))] = holder.pop(path[-1])
        else:
            del holder[path[-1]]
    return value


@st.composite
def json_file(draw: DrawFn, value: Any, damage: bool = True) -> bytes:
    """A JSON file, damaged in its structure or, less often, in its bytes."""
    what = draw(st.integers(0, 11)) if damage else 0
    if what == 11:
        return draw(st.sampled_from((b"", DEEP, b'{"a":' * 5000, b"\xff\xfe", b"null", b"9" * 5000, b"\xef\xbb\xbf{}")))
    if what >= 9:
        return draw(damaged(json.dumps(value).encode()))
    return json.dumps(draw(json_value(value))).encode()
