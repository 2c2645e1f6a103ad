"""`python -m dml_jax.export`: what it writes from a work directory alone, and pushing to and pulling from a hub."""

import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
import pytest
from pyarrow import parquet as reader

import dml_jax
from dml_jax import cli
from dml_jax.errors import ConfigError, DataError
from dml_jax.export import __main__ as command
from dml_jax.export import embedding_files
from dml_jax.train import manifest, workdir
from tests.train.experiments import small
from tests.train.test_teacher import trained

IMAGES = np.random.default_rng(0).integers(0, 256, (3, 24, 24, 3), dtype=np.uint8)
RESULTS = {
    "recall@1": 0.512, "recall@1_stderr": 0.01, "map@r": 0.25, "protocol": "clean; exact", "model": "last", "step": 5,
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that started from published weights, which are not there any more."""
    directory = trained(tmp_path_factory.mktemp("runs") / "digits", small(steps=5))
    facts = json.loads((directory / "config.json").read_text())
    facts["config"]["backbone"]["pretrained"] = "/no/such/weights"
    facts["config"]["data"]["path"] = "/home/me/photos"
    (directory / "config.json").write_text(json.dumps(facts))
    for checkpoint in manifest.complete(directory / "checkpoints" / "latest"):
        manifest.write(checkpoint, workdir.identity(facts))
    (directory / "results.json").write_text(json.dumps(RESULTS))
    for split in ("gallery", "test"):
        embedding_files.write(
            directory / "embeddings" / split, np.eye(3, 8), np.arange(3), ["a", "b", "c"], config_hash="", step=5,
            metadata={"class_name": ["x", "y", "z"]},
        )  # fmt: skip
    return directory


def test_a_model_and_tables_without_the_data(run: Path, tmp_path: Path) -> None:
    command.execute([f"--workdir={run}", "--to=parquet,stablehlo", f"--output={tmp_path / 'new' / 'out'}"])
    out = tmp_path / "new" / "out"
    assert sorted(path.name for path in out.iterdir()) == ["gallery.parquet", "model.stablehlo", "test.parquet"]
    embed = jax.export.deserialize(bytearray((out / "model.stablehlo").read_bytes())).call
    np.testing.assert_allclose(embed(IMAGES), dml_jax.load(run).embed(list(IMAGES)), atol=1e-6)
    assert reader.read_table(out / "test.parquet").column_names == ["embedding", "id", "label", "class_name"]


class Hub:
    """Stands for huggingface_hub: repositories are directories."""

    def __init__(self, directory: Path):
        self.directory = directory
        self.private: list[bool] = []

        import huggingface_hub

        self.ModelCardData, self.EvalResult = huggingface_hub.ModelCardData, huggingface_hub.EvalResult

    def create_repo(self, repository: str, *, private: bool, exist_ok: bool) -> None:
        if "/" not in repository:
            raise ValueError("401 Client Error\nmore")
        self.private.append(private)

    def upload_folder(self, *, repo_id: str, folder_path: Path, delete_patterns: Sequence[str] = ()) -> None:
        pushed = self.directory / repo_id
        for path in [path for pattern in delete_patterns for path in pushed.glob(pattern)]:
            path.unlink()
        shutil.copytree(folder_path, pushed, dirs_exist_ok=True)

    def snapshot_download(self, repository: str, *, revision: str | None, allow_patterns: list[str]) -> str:
        assert revision in (None, "v1")
        if not (self.directory / repository).is_dir():
            raise ValueError("404 Client Error. (Request ID: x)\n\nRepository Not Found")
        found = self.directory / "cache" / repository
        for path in (self.directory / repository).rglob("*"):
            name = path.relative_to(self.directory / repository)
            if any(name.match(pattern) for pattern in allow_patterns):
                (found / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, found / name)
        found.mkdir(parents=True, exist_ok=True)
        return str(found)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Hub:
    pytest.importorskip("huggingface_hub")
    stub = Hub(tmp_path / "hub")
    monkeypatch.setitem(sys.modules, "huggingface_hub", stub)  # type: ignore[arg-type]
    monkeypatch.setattr(cli, "check_installed", lambda *names: None)
    return stub


def test_a_pushed_run_is_pulled_without_anything_that_could_hold_code(run: Path, hub: Hub) -> None:
    command.execute([f"--workdir={run}", "--push=me/digits", "--private"])
    assert hub.private == [True]
    pushed = hub.directory / "me" / "digits"
    files = sorted(str(path.relative_to(pushed)) for path in pushed.rglob("*") if path.is_file())
    assert files == ["README.md", "config.json", "model/5.safetensors", "results.json"]
    assert "/home/me" not in "".join((pushed / name).read_text() for name in files if name.endswith("json"))
    (pushed / "model.py").write_text("raise SystemExit")

    model = dml_jax.load("hf://me/digits@v1")
    np.testing.assert_array_equal(model.embed(list(IMAGES)), dml_jax.load(run).embed(list(IMAGES)))
    assert model.step == 5
    assert not list((hub.directory / "cache").rglob("*.py"))


def test_results_of_another_model_are_not_pushed(run: Path, hub: Hub, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "results.json").write_text(json.dumps(RESULTS | {"step": 4}))
    message = r"results\.json is of step 4, but the model of step 5; finish the run first"
    with pytest.warns(UserWarning, match="has not finished"), pytest.raises(DataError, match=message):
        command.execute([f"--workdir={copy}", "--push=me/digits"])
    assert hub.private == []  # no repository has been created


def test_the_model_of_the_last_push_is_loaded(run: Path, hub: Hub) -> None:
    """Although the one that it replaces has been trained for longer; other files of the repository are kept."""
    pushed = hub.directory / "me" / "digits"
    (pushed / "model").mkdir(parents=True)
    for name in ("model/900.safetensors", "model.onnx", "test.parquet", "photo.jpg"):
        (pushed / name).write_bytes(b"of another model")
    command.execute([f"--workdir={run}", "--push=me/digits"])
    assert dml_jax.load("hf://me/digits").step == 5
    files = sorted(str(path.relative_to(pushed)) for path in pushed.rglob("*") if path.is_file())
    assert files == ["README.md", "config.json", "model/5.safetensors", "photo.jpg", "results.json"]


def test_the_model_card(run: Path, hub: Hub) -> None:
    import yaml

    command.execute([f"--workdir={run}", "--push=me/digits"])
    _, head, body = (hub.directory / "me" / "digits" / "README.md").read_text().split("---\n", 2)
    metadata: dict[str, Any] = yaml.safe_load(head)
    assert metadata["library_name"] == "dml_jax"
    (entry,) = metadata["model-index"]
    assert entry["results"][0]["dataset"]["type"] == "digits"
    metrics = {metric["type"]: metric["value"] for metric in entry["results"][0]["metrics"]}
    assert metrics == {"recall@1": 0.512, "map@r": 0.25}
    assert RESULTS["protocol"] in body
    assert 'dml_jax.load("hf://me/digits")' in body
    assert "| 51.2 ± 1.0 | 25.0 |" in body


def test_what_the_hub_refuses(run: Path, hub: Hub) -> None:
    with pytest.raises(ConfigError, match=r"^--push=digits: 401 Client Error$"):
        command.execute([f"--workdir={run}", "--push=digits"])
    with pytest.raises(DataError, match=r"^hf://no/run: cannot be downloaded \(404 Client Error"):
        dml_jax.load("hf://no/run")
    (hub.directory / "other" / "kind").mkdir(parents=True)
    with pytest.raises(DataError, match=r"holds no run of dml_jax \(config.json is missing\)"):
        dml_jax.load("hf://other/kind")


@pytest.mark.parametrize(
    ("arguments", "wanted"),
    [
        ([], "--workdir: missing"),
        (["--workdir=x", "--to=parquet", "--checkpoint=8"], "--checkpoint=8: the run has embeddings of the reported"),
        (["--workdir=x"], "--to: missing; give some of onnx,stablehlo,parquet, or --push=user/name"),
        (["--workdir=x", "--to=parquet,onx"], "--to=parquet,onx: there is no 'onx'; did you mean onnx?"),
        (["--workdir=/no/such", "--to=stablehlo"], "/no/such: is not a work directory"),
        (["--workdir=x", "--to=onnx"], '--to=onnx: jax2onnx is not installed: pip install -e ".[onnx]"'),
        (["--workdir=x", "--push=a/b"], '--push=a/b: huggingface_hub is not installed: pip install -e ".[hub]"'),
        (["--workdir=x", "--to=stablehlo", f"--output={__file__}"], "is a file; give a directory"),
    ],
)
def test_one_line_errors(
    arguments: list[str], wanted: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("jax2onnx", "huggingface_hub"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(sys, "argv", ["dml_jax.export", *arguments])
    assert command.main() == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ")
    assert wanted in error
    assert error.count("\n") == 1


def test_a_run_without_embeddings(tmp_path: Path) -> None:
    facts = {"config": {}, "data_hash": "", "classes": 5, "images": 9, "shape": [8, 8]}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    with pytest.raises(DataError, match="holds no embeddings; write them with --mode=export"):
        command.execute([f"--workdir={tmp_path}", "--to=parquet"])
