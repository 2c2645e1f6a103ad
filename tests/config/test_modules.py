"""Methods, backbones, data sets and losses of other packages: trained by import path, loaded with consent only."""

import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest

import dml_jax
from dml_jax import config as configs
from dml_jax import main
from dml_jax.analysis import run_report
from dml_jax.backbones import resnet
from dml_jax.commands import cli, embed
from dml_jax.config import files as config_files
from dml_jax.data import formats
from dml_jax.errors import ConfigError
from tests.train.experiments import values

MODULES = {
    "__init__": "",
    "hyp": '''
from dml_jax.config.fields import Positive, section
from dml_jax.methods import baseline
from mypaper import losses

GROUPS = baseline.GROUPS


@section
class Config:
    """Options of the paper's method."""

    name: str = "mypaper.hyp"
    scale: Positive = 2.0  # of the distances


def build(config, backbone, data):
    options = {"scale": config.scale}
    return baseline.build(baseline.make_config("mypaper.losses.spread", options, embedding_dim=8), backbone, data)
''',
    "net": '''
from dml_jax.backbones import resnet
from dml_jax.config.fields import section


@section
class Config(resnet.Config):
    """Options of the paper's network."""

    name: str = "mypaper.net"
    depths: tuple[int, ...] = (1,)  # one stage
    widths: tuple[int, ...] = (4,)  # of that stage


build = resnet.build
''',
    "photos": """
from pathlib import Path
from dml_jax.data.formats.digits import load

(Path(__file__).parent / "photos_imported").touch()
""",
    "losses": """
from pathlib import Path

from dml_jax.config.fields import Positive
from dml_jax.losses import contrastive

(Path(__file__).parent / "losses_imported").touch()


def spread(embeddings, labels, *, scale: Positive = 1.0):
    return contrastive(scale * embeddings, labels)
""",
}
CONFIG = """
from configs.base import experiment
from dml_jax.backbones import resnet
from dml_jax.config import Data, Evaluation, Group, Train
from dml_jax.methods import baseline

VARIANTS = ("method", "loss")

def get_config(variant):
    if variant == "method":
        from mypaper import hyp, net
        backbone, method = net.Config(), hyp.Config()
    else:
        import mypaper.losses
        backbone = resnet.Config(block="basic", depths=(1,), widths=(4,), stem="small")
        options = {"triplet": {}, "spread": {"scale": 3.0}}
        method = baseline.make_config("triplet+mypaper.losses.spread", options, embedding_dim=8)
    return experiment(
        "paper",
        data=Data(name="mypaper.photos", batch_size=16, images_per_class=4),
        backbone=backbone,
        method=method,
        train=Train(groups={name: Group(1e-3) for name in baseline.GROUPS}, steps=2),
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
    for name, text in MODULES.items():
        Path(f"mypaper/{name}.py").write_text(text)
    Path("paper.py").write_text(CONFIG)
    yield tmp_path
    forget()


def forget() -> None:
    """Removes the code of the paper from this process, as if it had not been imported."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "mypaper"]:
        del sys.modules[name]
    for mark in Path("mypaper").glob("*_imported"):
        mark.unlink()


def marks() -> set[str]:
    return {path.name.removesuffix("_imported") for path in Path("mypaper").glob("*_imported")}


def status(*arguments: str) -> int:
    return cli.exit_code(lambda: main.execute([*arguments, "--quiet"]))


@pytest.mark.parametrize("variant", ["method", "loss"])
def test_code_is_trained_by_its_import_path_and_loaded_with_consent_only(
    variant: str, paper: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (
        f"--config=paper.py:{variant}",
        "--workdir=run",
        f"--config.method.{'' if variant == 'method' else 'spread.'}scale=4.0",
    )
    assert status(*arguments) == 0, capsys.readouterr().err
    stored = json.loads(Path("run/config.json").read_text())["config"]
    assert stored["data"]["name"] == "mypaper.photos"
    assert stored["method"]["scale" if variant == "method" else "spread"] == (
        4.0 if variant == "method" else {"scale": 4.0}
    )
    assert status(*arguments) == 0  # has finished
    assert "finished" in capsys.readouterr().out
    images = np.zeros((2, *dml_jax.load("run").shape, 3), np.uint8)  # imported already

    forget()
    name = {"method": "backbone.name='mypaper.net'", "loss": "method.loss='mypaper.losses.spread'"}[variant]
    with pytest.raises(ConfigError, match=f"^{name}: .* --trust_code .*trust_code=True.*$"):
        dml_jax.load("run")
    assert status("--config=run/config.json", "--workdir=other") == 2
    assert capsys.readouterr().err.startswith(f"error: {name}: mypaper.")
    assert cli.exit_code(lambda: embed.execute(["--model=run", "paper.py"])) == 2
    assert marks() == set()
    assert not [module for module in sys.modules if module.startswith("mypaper")]

    sys.path.insert(0, str(paper))
    assert dml_jax.load("run", trust_code=True).embed(list(images)).shape == (2, 8)
    assert marks() == {"losses", "photos"}
    forget()
    assert status("--config=run/config.json", "--workdir=run", "--trust_code") == 0


def test_a_command_line_names_code(paper: Path) -> None:
    found = config_files.load_config("paper.py:loss", {"data.name": "digits"})
    Path("config.json").write_text(found.to_json())
    sys.path.insert(0, str(paper))
    forget()
    with pytest.raises(ConfigError, match=r"method\.loss='mypaper\.losses\.spread': mypaper\.losses is not imported"):
        config_files.resolved("config.json", {"method.embedding_dim": "4"})
    config = config_files.resolved("config.json", {"method.loss": "mypaper.losses.spread"})
    assert config.method.options["mypaper.losses.spread"].scale == 3.0
    assert marks() == {"losses"}


def test_another_network_starts_from_its_defaults() -> None:
    given = {"backbone.depths": "2,2,2,2", "backbone.name": "resnet", "backbone.block": "basic"}
    found = config_files.load_config("configs/folder_baseline.py", given)["backbone"].to_dict()
    assert found == asdict(resnet.Config(block="basic", depths=(2, 2, 2, 2)))
    with pytest.raises(ConfigError, match=r"backbone\.name='resnett': unknown backbone; did you mean resnet"):
        config_files.load_config("configs/folder_baseline.py", {"backbone.name": "resnett"})


def test_the_code_of_the_data_is_not_needed_to_use_a_model(paper: Path) -> None:
    sys.path.insert(0, str(paper))
    config = configs.resolve(values(steps=1) | {"data": {"name": "mypaper.photos"}})
    assert marks() == set()
    with pytest.raises(ConfigError, match=r"data\.name='mypaper\.photos': .* --trust_code"):
        formats.load(config.data)


def test_code_that_cannot_be_imported_or_does_not_fit(paper: Path) -> None:
    Path("mypaper/broken.py").write_text("1 / 0")
    sys.path.insert(0, str(paper))
    with pytest.raises(ConfigError, match=r"^data\.name='nowhere\.photos': .*No module .*PYTHONPATH"):
        configs.import_code({"data": {"name": "nowhere.photos"}})
    with pytest.raises(ConfigError, match=r"^backbone\.name='mypaper\.broken': .* \(ZeroDivision"):
        configs.import_code({"backbone": {"name": "mypaper.broken"}})
    configs.import_code({"method": {"name": "mypaper.losses"}})
    with pytest.raises(ConfigError, match=r"method\.name='mypaper\.losses': does not define build\(\)"):
        configs.module("method", "mypaper.losses")
