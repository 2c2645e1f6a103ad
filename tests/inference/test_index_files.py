"""The arrays in the file of an index are checked before they are allocated."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dml_jax.errors import DataError
from dml_jax.inference import index


def test_arrays_are_not_larger_than_their_file(tmp_path: Path) -> None:
    path, rows = (
        tmp_path / "x.npz",
        {"rows": np.eye(3, dtype=np.float32), "names": np.array(["a", "Ü"]), "none": []},
    )
    np.savez(path, **rows)
    with path.open("rb") as file:
        found = index._arrays(file)
    assert list(found) == list(rows)
    for name, array in rows.items():
        np.testing.assert_array_equal(found[name], array, strict=isinstance(array, np.ndarray))
    np.savez_compressed(path, rows=np.zeros(2**20))
    with pytest.raises(DataError, match="larger than the file"), path.open("rb") as file:
        index._arrays(file)
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (2**40,)}
    )
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("rows.npy", header.getvalue())
    with (
        pytest.raises(DataError, match=r"rows\.npy: is shorter than its shape \[1099511627776\]"),
        path.open("rb") as file,
    ):
        index._arrays(file)
    np.savez(path, rows=np.array([None]))
    with pytest.raises(ValueError, match="allow_pickle"), path.open("rb") as file:
        index._arrays(file)
