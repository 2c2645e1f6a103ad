"""`dml-jax inspect` of prepared data sets, and its look at the pixels; the pages of other sources
are in `tests/data/sources.txt`."""

from pathlib import Path

import pytest

import dml_jax
from dml_jax.commands import inspect, prepare
from tests.commands.conftest import Execute
from tests.data import layouts
from tests.tiny_model import Tiny

TREES = ("ash", "elm", "oak", "yew")


def test_the_printed_command_prepares_the_source(
    execute: Execute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for split in ("Train", "valid", "test"):
        layouts.photos(Path("photos", split), TREES)
    page = execute(inspect, "photos")[1]
    _, _, command = page.splitlines()[-1].partition("prepare it: dml-jax prepare ")
    assert execute(prepare, *command.split(), "--quiet")[0] == 0
    assert execute(inspect, "data/photos") == (
        0,
        "read as: folder, a prepared data set\n"
        "train: 18 images of 2 classes\n"
        "test: 18 images of 2 classes\n"
        "use it: --config.data.name=folder --config.data.path=data/photos\n",
        "",
    )
    Path("photos/test/oak/9.jpg").symlink_to("nowhere.jpg")
    assert "listed images (1) are missing" in execute(inspect, "photos", "--splits=none")[1]


def test_a_look_at_the_pixels(execute: Execute, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of folders that can be read in several ways, before the error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Tiny())
    monkeypatch.setattr("dml_jax.commands.jax_setup.enable_compilation_cache", lambda: None)
    for part in ("lernen", "pruefen"):
        layouts.photos(Path("photos", part), TREES)
    looked = ["embedding 24 images with lite0", "looked at 24 images of 8 folders"]
    code, out, err = execute(inspect, "photos", "--look")
    assert (code, err.count("hold mostly the same names")) == (2, 1)
    assert out.splitlines()[:2] == looked
    assert "--classes=leaf" in out
    code, out, err = execute(inspect, "photos", "--classes=leaf", "--look")
    assert (code, err) == (0, "")
    assert "read as: folder" in out
    assert looked[1] in out
