"""Files at URLs: those of the local file system, by the same code as in buckets; with `slow`, in an
emulated bucket."""

from pathlib import Path

import numpy as np
import pytest

from dml_jax.buckets import file_system
from dml_jax.config import Data
from dml_jax.data import formats, prepared_data
from dml_jax.errors import DataError
from tests import emulator
from tests.data import pictures


@pytest.fixture
def bucket(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory, whose URL has to be encoded, with a class folder of four images for each of four
    classes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for i in range(16):
        file = tmp_path / "bückèt 1" / f"class{i % 4}" / f"{i}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(pictures.encoded(i, kind="PNG"))
    return tmp_path / "bückèt 1"


def test_a_data_set_is_copied_once(bucket: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = Data(name="folder", path=f"file://{bucket}")
    copied = formats.load(data)["train"]
    there = formats.load(Data(name="folder", path=str(bucket)))["train"]
    assert copied.ids == there.ids
    assert copied.content == there.content
    np.testing.assert_array_equal(copied.read(1, None), there.read(1, None))
    assert capsys.readouterr().out.count("copying 16 files") == 1
    formats.load(data)
    assert "copying" not in capsys.readouterr().out
    (bucket / "class1" / "new.png").write_bytes(pictures.encoded(20, kind="PNG"))
    assert len(formats.load(data)["train"].labels) == len(there.labels) + 1
    assert "copying 17 files" in capsys.readouterr().out


def test_data_that_cannot_be_copied(bucket: Path) -> None:
    with pytest.raises(DataError, match="/none: cannot be read"):
        prepared_data.copy_from_bucket(f"{bucket.as_uri()}/none")
    (bucket / "empty").mkdir()
    with pytest.raises(DataError, match="/empty: contains no files"):
        prepared_data.copy_from_bucket(f"{bucket.as_uri()}/empty")
    with pytest.raises(DataError, match=r"0.png: is not a directory"):
        prepared_data.copy_from_bucket(f"{bucket.as_uri()}/class0/0.png")


def test_a_damaged_data_set_is_not_used(bucket: Path, tmp_path: Path) -> None:
    from dml_jax.commands import prepare

    prepare.execute(["--name=folder", f"--source={bucket}", f"--output={tmp_path / 'prepared'}"])
    url = (tmp_path / "prepared").as_uri()
    assert len(formats.load(Data(name="folder", path=url))["test"].labels) == 8
    file = next((tmp_path / "prepared").rglob("*.array_record*"))
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    with pytest.raises(DataError, match=r"prepared: .*array_record.*has changed since it was written"):
        prepared_data.copy_from_bucket(url)


@pytest.mark.slow
def test_buckets(bucket: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gcp_storage_emulator")
    there = "gs://anonymous@bucket"
    with emulator.running() as environment:
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        images = {path.relative_to(bucket).as_posix(): path.read_bytes() for path in sorted(bucket.rglob("*.png"))}
        for name, content in images.items():
            system, path = file_system(f"{there}/photos/{name}")
            with system.open_output_stream(path) as target:
                target.write(content)
        expected = formats.load(Data(name="folder", path=str(bucket)))["test"].content
        assert formats.load(Data(name="folder", path=f"{there}/photos"))["test"].content == expected
        with pytest.raises(DataError, match="cannot be read"):
            prepared_data.copy_from_bucket(there.replace("bucket", "none") + "/photos")
