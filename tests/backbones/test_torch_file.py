"""Reading torch's files without torch: both formats, agreement with torch, and rejection of everything else."""

import io
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml_jax.backbones.weights import torch_file
from dml_jax.errors import WeightsError
from tests.backbones import state_dicts
from tests.backbones.state_dicts import Call, Name

ARRAYS = {
    "a.weight": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "a.half": np.linspace(-1, 1, 5, dtype=np.float16),
    "a.double": np.array([[1e300, -2.0]]),
    "a.count": np.array(3, np.int64),
    "a.empty": np.zeros((0, 3), np.float32),
}


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("container", ["", "state_dict", "model_state_dict", "model"])
def test_reads_both_formats(tmp_path: Path, legacy: bool, container: str) -> None:
    contents = {container: ARRAYS, "epoch": 3} if container else ARRAYS
    views = torch_file.read(state_dicts.write(tmp_path / "w.pth", contents, legacy))
    assert views.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        found = views[name].read()
        assert (found.shape, found.dtype) == (array.shape, array.dtype)
        np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("legacy", [False, True])
def test_agrees_with_torch(tmp_path: Path, legacy: bool) -> None:
    torch = pytest.importorskip("torch")
    shared = torch.arange(12.0)
    written = {
        "transposed": torch.randn(3, 5).T,
        "slice": shared[2:8],
        "rows": shared.view(3, 4)[1:],
        "bfloat": torch.randn(4).bfloat16(),
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
    }
    torch.save(written, tmp_path / "w.pth", _use_new_zipfile_serialization=not legacy)
    views = torch_file.read(tmp_path / "w.pth")
    for name, tensor in written.items():
        theirs = tensor.detach().float().numpy()
        np.testing.assert_array_equal(views[name].read().astype(np.float32), theirs, err_msg=name)


def test_other_contents_of_published_checkpoints_are_ignored(tmp_path: Path) -> None:
    options = Call(Name("argparse", "Namespace"))
    contents = {
        "state_dict": ARRAYS,
        "opt": options,
        "progress": Call(Name("utilities.logger", "Progress_Saver")),
    }
    assert torch_file.read(state_dicts.write(tmp_path / "w.pth", contents)).keys() == ARRAYS.keys()


HOSTILE: list[Any] = [
    Call(Name("os", "system"), "touch ran"),
    Call(Name("posix", "system"), "touch ran"),
    Call(Name("builtins", "eval"), "open('ran', 'w')"),
    Call(Name("builtins", "getattr"), "x", "y"),
    Call(Name("torch", "load"), "other.pth"),
    Call(Name("torch._utils", "_rebuild_tensor_v2.__globals__"), "x"),
    Call(Name("collections", "OrderedDict.fromkeys"), "x"),
    Call(Name("numpy", "load"), "x"),
]


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda call: f"{call.function.module}.{call.function.name}")
@pytest.mark.parametrize("legacy", [False, True])
def test_no_code_is_executed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hostile: Any, legacy: bool) -> None:
    monkeypatch.chdir(tmp_path)
    path = state_dicts.write(tmp_path / "w.pth", {"a": ARRAYS["a.weight"], "b": hostile}, legacy)
    with pytest.raises(WeightsError, match=rf"refers to {hostile.function.module}\.{hostile.function.name}"):
        torch_file.read(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["w.pth"]


@pytest.mark.parametrize(
    ("offset", "shape", "strides"),
    [
        (0, (5,), (1,)),
        (3, (2,), (1,)),
        (0, (2, 2), (4, 1)),
        (-1, (2,), (1,)),
        (0, (2,), (-1,)),
        (0, (2, 2), (1,)),
    ],
)
def test_no_tensor_exceeds_its_storage(
    tmp_path: Path, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> None:
    four = np.zeros(4, np.float32)
    hostile = Call(Name("torch._utils", "_rebuild_tensor_v2"), state_dicts.Storage("0", four), offset, shape, strides)
    path = state_dicts.write(tmp_path / "w.pth", {"four": four, "hostile": hostile})  # `four` is storage 0
    with pytest.raises(WeightsError, match=r"(a tensor exceeds its storage|the description of a tensor is invalid)"):
        torch_file.read(path)


def test_no_tensor_is_larger_than_its_storage(tmp_path: Path) -> None:
    """A stride of 0 would turn a small file into gigabytes."""
    one = np.zeros(1, np.float32)
    huge = Call(Name("torch._utils", "_rebuild_tensor_v2"), state_dicts.Storage("0", one), 0, (10**9,), (0,))
    path = state_dicts.write(tmp_path / "w.pth", {"one": one, "huge": huge})
    with pytest.raises(WeightsError, match="a tensor has more elements than its storage"):
        torch_file.read(path)


def test_compressed_entries_are_rejected(tmp_path: Path) -> None:
    """A pickle with a string of 2 GB would fit into 2 MB."""
    path = state_dicts.write(tmp_path / "w.pth", ARRAYS)
    with zipfile.ZipFile(path) as archive:
        entries = {name: archive.read(name) for name in archive.namelist()}
    for compressed in ("archive/data.pkl", "archive/byteorder"):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in entries.items():
                archive.writestr(name, content, zipfile.ZIP_DEFLATED if name == compressed else zipfile.ZIP_STORED)
        with pytest.raises(WeightsError, match="an entry is compressed"):
            torch_file.read(path)


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize("share", [0.0, 0.01, 0.3, 0.7, 0.99])
def test_truncated(tmp_path: Path, legacy: bool, share: float) -> None:
    path = state_dicts.write(tmp_path / "w.pth", ARRAYS, legacy)
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
    with pytest.raises(WeightsError, match=r"w\.pth: is (truncated|empty).*; download it again"):
        torch_file.read(path)


def test_a_missing_storage_of_the_older_format(tmp_path: Path) -> None:
    path = state_dicts.write(tmp_path / "w.pth", {"a": np.zeros(2, np.float32), "b": np.ones(2, np.float32)}, True)
    data = path.read_bytes()
    keys, first = io.BytesIO(), io.BytesIO()
    state_dicts.Pickler(keys).dump(["0", "1"])
    state_dicts.Pickler(first).dump(["0"])
    assert data.count(keys.getvalue()) == 1
    path.write_bytes(data.replace(keys.getvalue(), first.getvalue()))
    with pytest.raises(WeightsError, match=r"w\.pth: .*a storage is missing"):
        torch_file.read(path)


def test_files_without_weights(tmp_path: Path) -> None:
    (tmp_path / "w.pth").write_bytes(b"\x89PNG\r\n" + bytes(100))
    with pytest.raises(WeightsError, match="neither"):
        torch_file.read(tmp_path / "w.pth")
    with pytest.raises(WeightsError, match="contains no state_dict"):
        torch_file.read(state_dicts.write(tmp_path / "n.pth", {"epoch": 3}))


def test_a_flipped_bit_is_detected(tmp_path: Path) -> None:
    path = state_dicts.write(tmp_path / "w.pth", ARRAYS)
    data = bytearray(path.read_bytes())
    start = data.index(ARRAYS["a.weight"].tobytes())
    data[start + 20] ^= 1
    path.write_bytes(data)
    view = torch_file.read(path)["a.weight"]
    with pytest.raises(WeightsError, match="download it again"):
        view.read()
