"""`dml-jax export`: what it writes from a work directory alone, and pushing to and pulling from a hub."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import dml_jax
from dml_jax import seal, table
from dml_jax.commands import cli
from dml_jax.commands import export as command
from dml_jax.errors import DataError
from dml_jax.train import model as models
from dml_jax.train.records import workdir
from tests.hub import CACHE, Fault, Hub
from tests.train.experiments import small, trained

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 24, 24, 3), dtype=np.uint8)
RESULTS = {"recall@1": 0.512, "recall@1_stderr": 0.01, "map@r": 0.25}
RESULTS |= {"protocol": "clean; exact", "model": "last", "step": 5}
MODEL = {"README.md", "config.json", "manifest.json", "model/manifest.json", "model/model.safetensors", "results.json"}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that started from published weights, which are not there any more."""
    directory = trained(tmp_path_factory.mktemp("runs") / "digits", small(steps=5))
    facts = json.loads((directory / "config.json").read_text())
    facts["config"]["backbone"]["pretrained"] = "/no/such/weights"
    facts["config"]["data"]["path"] = "/home/me/photos"
    (directory / "config.json").write_text(json.dumps(facts))
    (directory / seal.MANIFEST).unlink()
    for checkpoint in workdir.complete_checkpoints(directory / "checkpoints" / "latest"):
        seal.close(checkpoint, "checkpoint", about={"run": workdir.identity(facts)})
    (directory / "results.json").unlink(missing_ok=True)
    made = models.load(directory, "latest").identity()
    (directory / "results.json").write_text(json.dumps(RESULTS | {"identity": made.sha256}))
    for split in ("gallery", "test"):
        rows = np.eye(3, 8), np.arange(3), ["a", "b", "c"]
        names = {"class_name": ["x", "y", "z"]}
        table.write(directory / "embeddings" / split, *rows, identity=made, metadata=names)
    workdir.finish(directory, "checkpoints/latest/5", made)
    return directory


@pytest.fixture
def account(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Hub:
    """The hub, with a token of the user "me"."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    return hub


def push(run: Path, *options: str) -> None:
    command.execute([f"--model={run}", "--push=me/digits", *options])


def test_a_pushed_run_is_pulled_without_anything_that_could_hold_code(run: Path, account: Hub) -> None:
    push(run, "--private")
    assert account.private == {"me/digits"}
    pushed = account.repositories["me/digits"]
    assert pushed.keys() == MODEL | {".gitattributes"}
    assert "/home/me" not in "".join(pushed[name].decode() for name in pushed if name.endswith("json"))
    pushed["model.py"] = b"raise SystemExit"

    for _ in range(2):
        model = dml_jax.load("hf://me/digits@v1")
        np.testing.assert_array_equal(model.embed(list(IMAGES)), dml_jax.load(run).embed(list(IMAGES)))
        assert model.step == 5
        account.fail("", Fault(status=503))  # what has been pulled is loaded without the hub
    assert not list(CACHE.rglob("*.py"))


def test_results_of_another_model_are_not_pushed(run: Path, hub: Hub, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    results = json.loads((copy / "results.json").read_text())
    (copy / "results.json").write_text(json.dumps(results | {"step": 4}))
    made = seal.read_manifest(copy).identity
    assert made
    workdir.finish(copy, "checkpoints/latest/5", made)
    message = r"results\.json is for step 4, but the model is from step 5; finish the run first"
    with pytest.warns(UserWarning, match="has not finished"), pytest.raises(DataError, match=message):
        push(copy)
    assert hub.asked == []


def test_the_model_of_the_last_push_is_loaded(run: Path, account: Hub, tmp_path: Path) -> None:
    """Although the one that it replaces has been trained for longer; other files of the repository are kept."""
    names = ("model/900.safetensors", "model.onnx", "test.parquet", "photo.jpg")
    account.repositories["me/digits"] = dict.fromkeys(names, b"of another model")
    push(run, "--to=parquet", f"--output={tmp_path / 'new' / 'out'}")
    assert dml_jax.load("hf://me/digits").step == 5
    pushed = account.repositories["me/digits"]
    assert pushed.keys() == MODEL | {"gallery.parquet", "photo.jpg", "test.parquet"}
    assert pushed["test.parquet"] == (tmp_path / "new" / "out" / "test.parquet").read_bytes()


def test_the_model_card(run: Path, account: Hub) -> None:
    import yaml

    push(run)
    _, head, body = account.repositories["me/digits"]["README.md"].decode().split("---\n", 2)
    assert yaml.safe_load(head)["library_name"] == "dml_jax"
    assert RESULTS["protocol"] in body
    assert 'dml_jax.load("hf://me/digits")' in body
    assert "| 51.2 ± 1.0 | 25.0 |" in body


def test_who_may_not_push(
    run: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.reader = True
    for token, why in (("", "Invalid username or password"), ("hf_other", "You don't have the rights")):
        monkeypatch.setenv("HF_TOKEN", token)
        assert cli.exit_code(lambda: push(run)) == 2
        wanted = (
            rf"error: --push=me/digits: the request to the hub failed \({why}.*\); check the name, "
            r"log in with `hf auth login` .*\n"
        )
        assert re.fullmatch(wanted, err := capsys.readouterr().err), err
    assert hub.repositories == {}


def test_what_cannot_be_pulled(hub: Hub) -> None:
    """`remote/test_hub.py` has the refusals of the hub itself."""
    hub.repositories |= {"other/kind": {"config.json": b"{}"}, "empty/one": {}}
    for address in ("other/kind", "empty/one"):
        with pytest.raises(DataError, match=f"^hf://{address}: is not a run of dml_jax; it must contain config"):
            dml_jax.load(f"hf://{address}")
