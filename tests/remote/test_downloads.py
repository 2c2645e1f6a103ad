"""Downloads from a server on this machine that breaks off, and moves and changes files."""

import hashlib
import re
import socket
from pathlib import Path
from types import ModuleType

import pytest
import tensorflow_datasets

from dml_jax import seal
from dml_jax.commands import cli, prepare
from dml_jax.data import prepared_data
from dml_jax.data.formats import cub, omniglot, sop
from dml_jax.errors import DataError
from dml_jax.remote import downloads
from tests.data import layouts
from tests.hub import ENDPOINT, Fault, Hub

CONTENT = bytes(range(256)) * 1000
DIGEST = hashlib.sha256(CONTENT).hexdigest()
WHERE = f"{ENDPOINT}/owner/data/resolve/main"


@pytest.fixture
def served(hub: Hub) -> dict[str, bytes]:
    """The files that are served, by name."""
    return hub.repositories.setdefault("owner/data", {"x": CONTENT})


def fetch(target: Path, name: str = "x", where: str = WHERE) -> None:
    download = downloads.Download(f"{where}/{name}", len(CONTENT), DIGEST)
    downloads.fetch(download, target, "ask the owner", lambda _: None)


def test_an_interrupted_download_leaves_nothing(hub: Hub, served: dict[str, bytes], tmp_path: Path) -> None:
    hub.fail("/x$", Fault(cut=1000))
    reason = r"\(ended after 1000 of 256000 bytes\); try again, or ask the"
    with pytest.raises(DataError, match=rf"^{WHERE}/x: cannot be downloaded {reason}"):
        fetch(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
    hub.faults.clear()
    fetch(tmp_path / "x")
    assert (tmp_path / "x").read_bytes() == CONTENT


def test_a_server_that_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloads, "SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(DataError, match=r"\(timed out\); try again, or ask"):
            fetch(tmp_path / "x", where=address)


def test_bytes_of_another_file_are_noticed(served: dict[str, bytes], tmp_path: Path) -> None:
    served["x"] = b"y" * len(CONTENT)
    wrong = hashlib.sha256(served["x"]).hexdigest()
    with pytest.raises(DataError, match=rf"\(its SHA-256 is {wrong} instead of {DIGEST}\); try again"):
        fetch(tmp_path / "x")
    assert list(tmp_path.iterdir()) == []
    served["x.bin"] = CONTENT  # which the server has elsewhere
    fetch(tmp_path / "x", name="x.bin")
    assert (tmp_path / "x").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gone", r"HTTP Error 404: Not Found"),
        ("busy", r"HTTP Error 503: Service Unavailable"),
        ("page", r"text/html of \d+ bytes: the file has moved or changed"),
        ("longer", r"text/plain of 256001 bytes: the file has moved or changed"),
    ],
)
def test_moved_and_changed_files(hub: Hub, served: dict[str, bytes], tmp_path: Path, name: str, message: str) -> None:
    served["longer"] = CONTENT + b"!"
    hub.fail("/page", Fault(page=True))
    hub.fail("/busy", Fault(status=503))
    whole = rf"^{WHERE}/{name}: cannot be downloaded \({message}\); try again, or ask the owner$"
    with pytest.raises(DataError, match=whole):
        fetch(tmp_path / "x", name=name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("module", "table"),
    [
        (cub, "url_checksums/caltech_birds2011.txt"),
        (omniglot, "url_checksums/omniglot.txt"),
        (sop, "datasets/stanford_online_products/checksums.tsv"),
    ],
)
def test_lengths_and_digests_are_those_of_tensorflow_datasets(module: ModuleType, table: str) -> None:
    lines = Path(tensorflow_datasets.__path__[0], table).read_text().splitlines()
    known = {tuple(line.split("\t")[1:]) for line in lines}
    for source in module.RECIPE.downloads:
        assert (str(source.size), source.sha256, source.name) in known


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    return cli.exit_code(lambda: prepare.execute([*arguments])), *capsys.readouterr()


def test_prepare_downloads(
    hub: Hub, served: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    content = layouts.cub(tmp_path).read_bytes()
    served["CUB.tgz"], address = content, f"{WHERE}/CUB.tgz?download=1"
    hub.fail("CUB", Fault(cut=len(content) // 2))
    source = downloads.Download(address, len(content), hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(cub, "RECIPE", cub.RECIPE._replace(downloads=(source,)))
    command = ("--name=cub", "--download", "--subset")
    code, out, err = run(capsys, *command)
    assert code == 2
    assert re.fullmatch(
        rf"error: {re.escape(address)}: cannot be downloaded \(ended after {len(content) // 2} of "
        rf"{len(content)} bytes\); try again, or download it in a browser, "
        r"from https://www\.vision\.caltech\.edu/\S*, and give it as --source\n",
        err,
    )
    assert out.startswith(f"terms: {cub.RECIPE.terms}\nowners: https://www.vision.caltech.edu/")
    assert not (tmp_path / "data").exists() or list((tmp_path / "data").iterdir()) == []
    hub.faults.clear()
    code, out, err = run(capsys, *command)
    assert (code, err) == (0, "")
    assert "train: 9 images of 3 classes" in out
    seal.read(tmp_path / "data" / "cub", prepared_data.KIND)
    requests = len(hub.asked)
    assert run(capsys, *command)[0] == 0
    again = run(capsys, *command, "--output=again", "--short_side=16")  # the archive was kept
    assert again[::2] == (0, "")
    assert len(hub.asked) == requests
    (tmp_path / "cache" / "dml_jax" / "downloads" / "cub" / "CUB.tgz").write_bytes(b"damaged")
    assert run(capsys, *command, "--output=third")[0] == 0
    assert len(hub.asked) == requests + 1
