"""Methods, backbones, data sets and losses of other packages: trained by import path, loaded with consent only."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import dml_jax
from dml_jax import main
from dml_jax.analysis import run_report
from dml_jax.backbones import resnet
from dml_jax.commands import cli, embed
from dml_jax.config import files as config_files
from dml_jax.config import import_code, plugin_module, resolve
from dml_jax.config.fields import validate
from dml_jax.data import formats
from dml_jax.errors import ConfigError
from tests.train.experiments import values

PLUGINS = Path(__file__).parents[1] / "plugins"
MARK = """
from pathlib import Path
Path(f"{__file__}.imported").touch()
"""
CONFIG = """
from configs.base import experiment
from dml_jax.config import Data, Evaluation, Group, Train
from mypaper import method, network

def get_config():
    return experiment(
        "paper",
        data=Data(name="mypaper.photos", batch_size=16, images_per_class=4),
        backbone=network.Config(width=4),
        method=method.Config(embedding_dim=8),
        train=Train(groups={name: Group(1e-3) for name in method.GROUPS}, steps=2),
        evaluation=Evaluation(cluster=False),
    )
"""


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A directory with the code of a paper beside its configuration; runs write no report."""
    monkeypatch.setattr(run_report, "write", lambda run, results: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    Path("mypaper").mkdir()
    for name in ("method", "network", "loss", "photos"):
        code = (PLUGINS / f"{name}.py").read_text().replace("tests.plugins", "mypaper")
        Path(f"mypaper/{name}.py").write_text(code + MARK)
    Path("paper.py").write_text(CONFIG)
    yield tmp_path
    forget()


def forget() -> None:
    """Removes the code of the paper from this process, as if it had not been imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "mypaper"]:
        del sys.modules[name]
    for mark in Path("mypaper").glob("*.imported"):
        mark.unlink()


def imported() -> set[str]:
    return {path.name.partition(".")[0] for path in Path("mypaper").glob("*.imported")}


def status(*arguments: str) -> int:
    return cli.exit_code(lambda: main.execute([*arguments, "--quiet"]))


def test_code_is_trained_by_its_import_path_and_loaded_with_consent_only(
    paper: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("--config=paper.py", "--workdir=run", "--config.method.temperature=0.5")
    assert status(*arguments) == 0, capsys.readouterr().err
    stored = json.loads(Path("run/config.json").read_text())["config"]
    assert (stored["data"]["name"], stored["method"]["temperature"]) == ("mypaper.photos", 0.5)
    assert status(*arguments) == 0
    assert "finished" in capsys.readouterr().out
    images = np.zeros((2, *dml_jax.load("run").shape, 3), np.uint8)  # imported already

    forget()
    name = "backbone.name='mypaper.network'"
    with pytest.raises(ConfigError, match=f"^{name}: .* --trust_code .*trust_code=True.*$"):
        dml_jax.load("run")
    assert status("--config=run/config.json", "--workdir=other") == 2
    assert capsys.readouterr().err.startswith(f"error: {name}: mypaper.")
    assert cli.exit_code(lambda: embed.execute(["--model=run", "paper.py"])) == 2
    assert imported() == set()

    sys.path.insert(0, str(paper))
    assert dml_jax.load("run", trust_code=True).embed(list(images)).shape == (2, 8)
    assert imported() == {"method", "network", "photos"}
    forget()
    assert status("--config=run/config.json", "--workdir=run", "--trust_code") == 0


def test_a_command_line_names_code(paper: Path) -> None:
    sys.path.insert(0, str(paper))
    named = {"method.loss": "triplet+mypaper.loss.attraction"}
    found = config_files.load_config("digits_baseline", {**named, "method.attraction.scale": "3.0"})
    Path("config.json").write_text(json.dumps(found))
    forget()
    with pytest.raises(ConfigError, match=r"method\.loss='mypaper\.loss\.attraction': mypaper\.loss was not imported"):
        config_files.resolved("config.json", {"method.embedding_dim": "4"})
    config = config_files.resolved("config.json", named)
    assert config.method.options["mypaper.loss.attraction"].scale == 3.0
    assert imported() == {"loss"}


def test_a_command_line_names_functions_in_a_list() -> None:
    names = "tests.plugins.metric.last_hit"
    config = config_files.resolved("digits_baseline", {"evaluation.metrics": names})
    assert config.evaluation.metrics == (names,)


def test_another_network_starts_from_its_defaults() -> None:
    given = {"backbone.depths": "2,2,2,2", "backbone.name": "resnet", "backbone.block": "basic"}
    found = config_files.load_config("configs/folder_baseline.py", given)["backbone"]
    assert found == asdict(resnet.Config(block="basic", depths=(2, 2, 2, 2)))


@pytest.mark.parametrize(
    ("name", "network", "options"), [("lite0", "efficientnet_lite", {}), ("mit_b2", "mit", {"depths": "3,4,6,3"})]
)
def test_a_published_network_as_a_backbone_with_options(name: str, network: str, options: dict[str, str]) -> None:
    """Those of the error that its name gives."""
    overrides = {"backbone.name": network} | {f"backbone.{k}": v for k, v in options.items()}
    chosen = config_files.load_config("configs/digits_baseline.py", overrides)["backbone"]
    module = plugin_module("backbone", network)
    assert validate(module.Config, chosen) == module.PUBLISHED[name]


def test_the_code_of_the_data_is_not_needed_to_use_a_model(paper: Path) -> None:
    sys.path.insert(0, str(paper))
    config = resolve(values(steps=1) | {"data": {"name": "mypaper.photos"}})
    assert imported() == set()
    with pytest.raises(ConfigError, match=r"data\.name='mypaper\.photos': .* --trust_code"):
        formats.load(config.data)


def test_code_that_cannot_be_imported_or_does_not_fit(paper: Path) -> None:
    Path("mypaper/broken.py").write_text("1 / 0")
    sys.path.insert(0, str(paper))
    with pytest.raises(ConfigError, match=r"^data\.name='nowhere\.photos': .*No module .*PYTHONPATH"):
        import_code({"data": {"name": "nowhere.photos"}})
    with pytest.raises(ConfigError, match=r"^backbone\.name='mypaper\.broken': .* \(ZeroDivision"):
        import_code({"backbone": {"name": "mypaper.broken"}})
    import_code({"method": {"name": "mypaper.loss"}})
    with pytest.raises(ConfigError, match=r"method\.name='mypaper\.loss': does not define build\(\)"):
        plugin_module("method", "mypaper.loss")


@pytest.mark.parametrize("optimizer", ["sys.exit", "time.sleep", "numpy.save"])
def test_a_stored_configuration_calls_no_function_in_memory(optimizer: str, tmp_path: Path) -> None:
    """As a run from a hub could: `sys.exit` would end the process with exit code 0."""
    values = config_files.load_config("digits_baseline", {})
    values["train"]["optimizer"] = optimizer
    (tmp_path / "config.json").write_text(json.dumps({"config": values}))
    message = rf"train\.optimizer='{optimizer}': .* give --trust_code"
    with pytest.raises(ConfigError, match=message):
        config_files.resolved(str(tmp_path / "config.json"), {})
    facts = {"config": values, "data_hash": "", "classes": 5, "images": 9, "shape": [8, 8]}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    with pytest.raises(ConfigError, match=message):
        dml_jax.load(tmp_path)
