"""Names in an Arrow column behave like a list of strings."""

import hashlib
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dml_jax.data import split_metadata
from dml_jax.data.split import digest
from dml_jax.data.split_metadata import BLOCK, Names

LIST = ["a", "", "ü/漢字.jpg", os.fsdecode(b"\xff.png"), "", "z"]


def test_like_a_list() -> None:
    made = Names(split_metadata.encode(LIST))
    assert list(made) == LIST
    assert len(made) == len(LIST)
    assert [made[i] for i in range(-6, 6)] == LIST + LIST
    assert made[np.int64(2)] == LIST[2]
    for chosen in (slice(None), slice(1, 4), slice(3, 1), slice(None, None, -2), slice(-2, None)):
        assert made[chosen] == LIST[chosen]
    with pytest.raises(IndexError):
        made[6]
    assert LIST[3] in made
    assert list(Names(split_metadata.encode([]))) == []


def test_the_hash_of_data_does_not_depend_on_how_names_are_stored() -> None:
    count = BLOCK + 10
    ids = [f"image {i}" for i in range(count)]
    labels = np.zeros(count, np.int64)
    expected = hashlib.sha256(f"train {count}".encode() + labels.tobytes() + "\n".join(ids).encode() + b"pixels")
    for stored in (ids, Names(split_metadata.encode(ids))):
        made: Any = SimpleNamespace(splits={"train": SimpleNamespace(labels=labels, ids=stored, content="pixels")})
        assert digest(made.splits) == expected.hexdigest()
