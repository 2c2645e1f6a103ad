"""Reading pickles as data: plain data as the standard library reads it, everything else is rejected."""

import io
import os
import pickle
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dml_jax.backbones.weights import torch_file, torch_pickle
from dml_jax.backbones.weights.torch_pickle import Malformed, Refused, load
from dml_jax.errors import WeightsError
from tests.backbones import state_dicts

SCALARS = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=9)
PLAIN = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.lists(inner, max_size=5).map(tuple)
        | st.dictionaries(st.text(max_size=5), inner, max_size=5)
    ),
    max_leaves=20,
)


def read(data: bytes, names: Any = None) -> Any:
    return load(io.BytesIO(data), names or {}, lambda identifier: identifier)


@settings(max_examples=150, deadline=None)
@given(value=PLAIN, protocol=st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_plain_data(value: Any, protocol: int) -> None:
    assert read(pickle.dumps(value, protocol)) == value


def test_shared_objects_stay_shared() -> None:
    inner = [1, 2]
    found = read(pickle.dumps({"a": inner, "b": inner}))
    assert found["a"] is found["b"]


def test_consecutive_pickles() -> None:
    file = io.BytesIO(pickle.dumps(1) + pickle.dumps([2]) + b"rest")
    assert [load(file, {}, lambda i: i) for _ in range(2)] == [1, [2]]
    assert file.read() == b"rest"


@pytest.mark.parametrize("value", [Path("x"), np.ones(2), print, io.BytesIO, complex(1, 2)])
def test_names_are_rejected(value: Any) -> None:
    with pytest.raises(Refused, match=r"^[a-z_.]+\.\w+$"):
        read(pickle.dumps(value))


def test_only_names_of_the_table_are_called() -> None:
    by_value = b"\x80\x02U\x05print)R."  # calls a string
    with pytest.raises(Malformed, match="calls an object that is not in the table"):
        read(by_value)
    number = b"\x80\x02cbuiltins\nx\n)R."  # calls a value of the table that is not a function
    with pytest.raises(Malformed, match="calls an object"):
        read(number, {("builtins", "x"): 3})
    with pytest.raises(Malformed, match="instruction EXT1"):
        read(b"\x80\x02\x82\x01.")
    with pytest.raises(Malformed, match="instruction INST"):
        read(b"(ios\nsystem\n.")


@pytest.mark.parametrize("legacy", [False, True])
def test_damaged_files_raise_only_weights_errors(tmp_path: Path, legacy: bool) -> None:
    """With any bytes replaced, the file is either read or rejected with a WeightsError."""
    weights = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.zeros(3, np.float16)}
    path = state_dicts.write(tmp_path / "w.pth", {"state_dict": weights}, legacy)
    whole, rng = path.read_bytes(), np.random.default_rng(0)
    rejected = 0
    for _ in range(300):
        broken = bytearray(whole)
        for offset in rng.integers(0, len(whole), rng.integers(1, 4)):
            broken[offset] = rng.integers(256)
        path.write_bytes(broken)
        try:
            for view in torch_file.read(path).values():
                view.read()
        except WeightsError:
            rejected += 1
    assert rejected > 100


def test_many_marks_take_linear_time() -> None:
    seconds = []
    for count in (5_000, 40_000):
        began = time.process_time()
        for _ in range(3):
            assert read(b"\x80\x02(" + b"(t" * count + b"l.") == [()] * count
        seconds.append(time.process_time() - began)
    assert seconds[1] < 32 * seconds[0]  # 8 times if linear, 64 times if quadratic
    with pytest.raises(IndexError):
        read(b"\x80\x02l.")


@pytest.mark.parametrize(
    "pickled", [b"}%sNs.", b"}(%sNu.", b"(%sNd.", b"X\x01\0\0\0x%s\x93.", b"ccollections\nOrderedDict\n(](%sN\x86etR."]
)
def test_nested_tuples_are_not_hashed(pickled: bytes) -> None:
    """Hashing a tuple that contains the same tuple twice, sixty levels deep, would take years."""
    nested = b")q\0" + b"h\0\x86q\0" * 60
    with pytest.raises(Malformed, match=r"a key is neither a string nor a number|a name is not a string|OrderedDict"):
        read(b"\x80\x02" + pickled.replace(b"%s", nested), torch_file._NAMES)


def test_the_elements_passed_to_functions_are_limited() -> None:
    """A list that is passed again and again would be copied each time."""
    pair = b"X\x01\0\0\0aK\x01\x86"
    pickled = b"\x80\x02(ccollections\nOrderedDict\nq\1](" + pair * 2000 + b"eq\0" + b"h\1h\0\x85R" * 2000 + b"l."
    with pytest.raises(Malformed, match="passes more than 1048576 elements to functions"):
        read(pickled, torch_file._NAMES)


def test_shapes_are_small_numbers(tmp_path: Path) -> None:
    """The product of a long shape or of huge numbers takes quadratic time."""
    one = np.zeros(1, np.float32)
    for shape in ((1,) * 65, (2**63, 0)):
        arguments = state_dicts.Storage("0", one), 0, shape, (0,) * len(shape)
        hostile = state_dicts.Call(state_dicts.Name("torch._utils", "_rebuild_tensor_v2"), *arguments)
        path = state_dicts.write(tmp_path / "w.pth", {"one": one, "hostile": hostile})
        with pytest.raises(WeightsError, match="the description of a tensor is invalid"):
            torch_file.read(path)


def test_the_number_of_instructions_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_pickle, "MAX_INSTRUCTIONS", 100)
    assert read(b"\x80\x02(" + b"]" * 96 + b"l.") == [[]] * 96
    with pytest.raises(Malformed, match="more than 100 instructions"):
        read(b"\x80\x02(" + b"]" * 100 + b"l.")


def test_long_values_are_not_read(tmp_path: Path) -> None:
    """A sparse file of any size takes no space on the disk, but would fill the memory."""
    size = torch_pickle.MAX_BYTES + 1
    for start in (b"\x80\x04\x8e" + struct.pack("<Q", size), b"\x80\x02X" + struct.pack("<I", size), b"\x80\x02V"):
        file = tmp_path / "weights.pth"
        file.write_bytes(start)
        os.truncate(file, 2 * size)
        with pytest.raises(WeightsError, match="it has more than 256 MiB beside its numbers"):
            torch_file.read(file)
    many = b"\x80\x04" + 3 * (b"\x8e" + struct.pack("<Q", 9) + bytes(9)) + b"."
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_pickle, "MAX_BYTES", 20)
        with pytest.raises(Malformed, match="it has more than"):
            read(many)
