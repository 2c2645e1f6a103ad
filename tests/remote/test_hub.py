"""Weights from a hub on this machine, by its real client, through the command `convert`."""

import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy

from dml_jax.backbones import resnet
from dml_jax.backbones.weights import known_networks
from dml_jax.commands import cli, convert
from tests.backbones import state_dicts
from tests.hub import CACHE, Fault, Hub

NAME = "timm/tiny.tv_in1k"
TINY = resnet.Config(depths=(1, 1), widths=(4, 6))
ARGUMENTS = ("--output=out",)
HEAD, STORE = "HEAD /timm", "GET /store/"


@pytest.fixture(scope="module")
def weights() -> bytes:
    """A small ResNet in timm's format, with its classifier."""
    tensors = state_dicts.random_state_dict(resnet.build(TINY), "resnet")
    head = {"fc.weight": np.ones((1000, 24), np.float32), "fc.bias": np.zeros(1000, np.float32)}
    whole = {name: np.ascontiguousarray(array) for name, array in (tensors | head).items()}
    return safetensors.numpy.save(whole, {"format": "pt"})


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: bytes) -> None:
    """The command converts the small network as well."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(known_networks, "published", lambda: {"tiny": TINY})


@pytest.fixture
def timm(hub: Hub, weights: bytes) -> dict[str, bytes]:
    """The files of a repository of timm, which has the weights twice."""
    hub.repositories[NAME] = {"config.json": b"{}\n", "model.safetensors": weights, "pytorch_model.bin": b"pickle"}
    return hub.repositories[NAME]


def run(capsys: pytest.CaptureFixture[str], source: str = NAME) -> tuple[int, str, str]:
    code = cli.exit_code(lambda: convert.execute([f"--weights=hf://{source}", *ARGUMENTS]))
    return code, *capsys.readouterr()


def blobs() -> list[Path]:
    """The contents that the client keeps."""
    return [path for path in CACHE.rglob("blobs/*") if path.is_file()]


def check_converted(printed: tuple[int, str, str], weights: bytes) -> None:
    code, out, err = printed
    assert (code, err) == (0, "")
    assert f"hf://{NAME}: tiny, names of torchvision, backbone" in out
    assert [blob.read_bytes() for blob in blobs()] == [weights]
    written = safetensors.numpy.load_file(next(Path("out").glob("*.safetensors")))
    kernel = safetensors.numpy.load(weights)["conv1.weight"].transpose(2, 3, 1, 0)
    np.testing.assert_array_equal(written["backbone/params/conv1/kernel"], kernel)


def test_weights_are_downloaded_once(
    hub: Hub, timm: dict[str, bytes], weights: bytes, capsys: pytest.CaptureFixture[str]
) -> None:
    """Then they are the client's, with the hub or without: until there are others."""
    check_converted(run(capsys), weights)
    assert run(capsys, f"{NAME}/model.safetensors")[0] == 2  # out already exists
    assert len(hub.requests(STORE)) == 1
    hub.fail("", Fault(status=503))
    Path("out").rename("first")
    check_converted(run(capsys), weights)
    hub.faults.clear()
    timm["model.safetensors"] = weights[:-4] + b"\0\0\0\0"
    Path("out").rename("second")
    assert run(capsys)[0] == 0
    assert sorted(len(blob.read_bytes()) for blob in blobs()) == [len(weights)] * 2


@pytest.mark.parametrize(
    ("pattern", "fault", "message"),
    [
        (STORE, Fault(cut=0), r"\(peer closed connection.* 0 bytes, expected \d+\)\); check"),
        (STORE, Fault(status=403), r"\(.*Forbidden.*\); check the name, log in with `hf auth login` "),
        (HEAD, Fault(status=503), r"\(.*Service Unavailable.*\); .* or try again, or give the path"),
        ("", Fault(page=True), r"\(Response from http.* is missing the 'X-Repo-Commit' header.*\);"),
    ],
)
def test_failures(
    pattern: str, fault: Fault, message: str, hub: Hub, timm: dict[str, bytes], weights: bytes,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """One sentence; nothing is kept, neither here nor by the client; then the same command succeeds."""
    hub.fail(pattern, fault)
    code, out, err = run(capsys)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert re.match(rf"error: hf://{NAME}: the request to the hub failed {message}", err.removesuffix("\n")), err
    assert list(Path().iterdir()) == []
    assert not [path for path in CACHE.rglob("*") if path.is_file() and path.stat().st_size > 1000]
    hub.faults.clear()
    check_converted(run(capsys), weights)


FAILED = r"the request to the hub failed \("


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("timm/none", rf"{FAILED}the repository does not exist .*\); check"),
        ("timm/gated", rf"{FAILED}Access to model timm/gated is restricted\. .*\); check the name"),
        ("timm/empty", r"contains none of model.safetensors, .*, pytorch_model.bin; name the file"),
        ("timm/empty/w.pth", r"contains none of w\.pth; name the file"),
        ("timm/a--b", rf"{FAILED}Cannot have -- or \.\. in repo_id.*\)"),
        ("timm", r"must be hf://owner/repository or hf://owner/repository/file"),
    ],
)
def test_what_is_not_there(source: str, message: str, hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("gated", "empty"):
        hub.repositories[f"timm/{name}"] = {} if name == "empty" else {"model.safetensors": b"x"}
    hub.gated.add("timm/gated")
    code, out, err = run(capsys, source)
    assert (code, out) == (2, "")
    assert re.fullmatch(rf"error: hf://{source}: {message}.*\n", err), err
    assert list(Path().iterdir()) == []


def test_a_token_opens_private_repositories(
    hub: Hub, timm: dict[str, bytes], weights: bytes, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    hub.private.add(NAME)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    check_converted(run(capsys), weights)


def test_a_full_disk(
    hub: Hub, timm: dict[str, bytes], weights: bytes, full_disk: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with full_disk(50_000):
        code, _, err = run(capsys)
    assert (code, err) == (2, f"error: {CACHE}/hub: cannot be used (File too large)\n")
    check_converted(run(capsys), weights)


def test_without_a_network(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody listens at the address, however often the client tries."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)
    code, out, err = run(capsys)
    assert (code, out) == (2, "")
    assert re.fullmatch(
        rf"error: hf://{NAME}: the request to the hub failed \(Connection refused\); .* or try "
        rf"again, or give the path of a file from https://huggingface\.co/{NAME}\n",
        err,
    ), err
    assert list(Path().iterdir()) == []
