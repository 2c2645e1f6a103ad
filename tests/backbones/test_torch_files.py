"""Torch's files: the packaged ones without torch, all others by `torch.load`, and no code of theirs is executed."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml_jax.backbones.weights import converted, tensor_files
from dml_jax.errors import WeightsError

ARRAYS = {
    "a.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "a.half": np.linspace(-1, 1, 5, dtype=np.float16),
    "a.double": np.array([[1e30, -2.0]]),
    "a.count": np.array(3, np.int64),
    "a.empty": np.zeros((0, 3), np.float32),
}


def test_the_packaged_file_needs_no_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever it lies, it is recognised by its SHA-256."""
    monkeypatch.setitem(sys.modules, "torch", None)
    found = tensor_files.read(converted.source("lite0"))
    assert (len(found), found["_conv_stem.weight"].shape) == (296, (32, 3, 3, 3))
    assert found["_bn0.num_batches_tracked"].dtype == np.int64


def test_names_in_a_pickle_are_not_imported(tmp_path: Path) -> None:
    """Not even in a file whose SHA-256 was believed."""
    (tmp_path / "w.pth").write_bytes(b"\x80\x02cos\nsystem\nX\x04\0\0\0true\x85R.")
    with pytest.raises(KeyError, match="system"):
        tensor_files.read_packaged(tmp_path / "w.pth")


def test_other_files_need_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    path = tmp_path / "w.pth"
    for start, message in ((b"PK\3\4", "needs torch: pip"), (b"\x89PNG\r\n", "is neither")):
        path.write_bytes(start + bytes(100))
        with pytest.raises(WeightsError, match=rf"w\.pth: {message}"):
            tensor_files.read(path)


# The nightly set installs torch.


@pytest.fixture(params=[False, True], ids=["zip", "legacy"])
def save(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Writes an object as torch does, in both of its formats."""
    torch = pytest.importorskip("torch")

    def write(content: Any) -> Path:
        torch.save(content, tmp_path / "w.pth", _use_new_zipfile_serialization=not request.param)
        return tmp_path / "w.pth"

    return write


def tensors() -> dict[str, Any]:
    torch = pytest.importorskip("torch")
    return {name: torch.from_numpy(array.copy()) for name, array in ARRAYS.items()}


@pytest.mark.slow
@pytest.mark.parametrize("container", ["", "state_dict", "model_state_dict", "model"])
def test_state_dicts(save: Any, container: str) -> None:
    """DiVA's also hold the options of the run and its curves."""
    options = argparse.Namespace(bs=112, best=np.float64(0.5), kind=np.dtype("f4"))
    others = {"epoch": 3, "opt": options, "aux": {"rho": tensors()}}
    found = tensor_files.read(save({container: tensors(), **others} if container else tensors()))
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert found[name].shape == array.shape
        np.testing.assert_allclose(found[name], array, rtol=1e-6)


@pytest.mark.slow
def test_views_parameters_and_bfloat16(save: Any) -> None:
    torch = pytest.importorskip("torch")
    written = {
        "transposed": torch.randn(3, 5).T,
        "rows": torch.arange(12.0).view(3, 4)[1:],
        "bfloat": torch.randn(4).bfloat16(),
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
    }
    found = tensor_files.read(save(written))
    for name, tensor in written.items():
        np.testing.assert_array_equal(found[name], tensor.detach().float().numpy(), err_msg=name)


class Hostile:
    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> Any:
        return self.call


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hostile", "name"),
    [(Hostile(os.system, "touch ran"), r"\w+\.system"), (Hostile(eval, "open('ran', 'w')"), "eval"),
     (Hostile(getattr, "x", "y"), "getattr"), (Hostile(np.load, "x"), r"numpy\.load")],
)  # fmt: skip
def test_no_code_is_executed(
    save: Any, hostile: Hostile, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = save({"state_dict": tensors(), "x": hostile})
    with pytest.raises(WeightsError, match=rf"w\.pth: refers to {name}, which is never executed"):
        tensor_files.read(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["w.pth"]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.01, 0.3, 0.7, 0.99])
def test_truncated(save: Any, share: float) -> None:
    path = save(tensors())
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    with pytest.raises(WeightsError, match=r"w\.pth: is truncated or damaged.*; download it again"):
        tensor_files.read(path)


@pytest.mark.slow
def test_files_without_weights(save: Any) -> None:
    for content in ({"epoch": 3}, dict(enumerate(tensors().values()))):
        with pytest.raises(WeightsError, match=r"w\.pth: contains no state_dict"):
            tensor_files.read(save(content))
