"""Names in two arrays behave like a list of strings."""

import hashlib
import os
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from dml_jax.data import names
from dml_jax.data.names import BLOCK, Names
from dml_jax.train import experiment

LIST = ["a", "", "ü/漢字.jpg", os.fsdecode(b"\xff.png"), "", "z"]


def test_like_a_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "BLOCK", 4)
    made = Names.of(LIST)
    assert list(made) == LIST
    assert made == LIST
    assert made != LIST[:-1]
    assert made != [*LIST[:-1], "y"]
    assert made != list(range(len(LIST)))
    assert Names.of(["a", "b"]) != "ab"
    assert [made[i] for i in range(-6, 6)] == LIST + LIST
    assert made[np.int64(2)] == LIST[2]
    for chosen in (slice(None), slice(1, 4), slice(3, 1), slice(None, None, -2), slice(-2, None)):
        assert made[chosen] == LIST[chosen]
    with pytest.raises(IndexError):
        made[6]
    assert LIST[3] in made
    assert list(Names.of([])) == []


@pytest.mark.parametrize("ends", [[2, 1], [1, 2], [1, 4], [-1, 3], [3.0], [[3]], []])
def test_arrays_that_do_not_fit(ends: Any) -> None:
    array = np.array(ends, np.int64 if all(isinstance(end, int) for end in ends) else None)
    with pytest.raises(ValueError, match="names must"):
        Names(np.frombuffer(b"abc", np.uint8), array.reshape(1, -1) if ends == [[3]] else array)


def test_the_hash_of_data_does_not_depend_on_how_names_are_stored() -> None:
    count = BLOCK + 10
    ids = [f"image {i}" for i in range(count)]
    labels = np.zeros(count, np.int64)
    expected = hashlib.sha256(f"train {count}".encode() + labels.tobytes() + "\n".join(ids).encode() + b"pixels")
    for stored in (ids, Names.of(ids)):
        made: Any = SimpleNamespace(splits={"train": SimpleNamespace(labels=labels, ids=stored, content="pixels")})
        assert experiment.data_hash(made.splits) == expected.hexdigest()
