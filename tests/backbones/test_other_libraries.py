"""The examples of docs/guides/extend.md: networks of Flax's nnx and of equimo as backbones."""

import importlib
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import dml_jax
from dml_jax import main
from dml_jax.analysis import run_report
from dml_jax.commands import cli
from dml_jax.config import import_code, plugin_module, resolve
from dml_jax.data.formats import digits
from dml_jax.errors import ConfigError
from dml_jax.methods.contract import TrainingSet
from dml_jax.train.method_wrappers import build_method
from tests import toys
from tests.train.experiments import values

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "extend.md"


class Network(nnx.Module):
    """A convolution and a batch norm."""

    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(3, 16, (3, 3), strides=2, rngs=rngs)
        self.norm = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return nnx.relu(self.norm(self.conv(x)))


def block(words: str) -> str:
    """The Python code of the guide that contains the words."""
    found = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    return next(code for code in found if words in code)


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the example is `othernet.net`."""
    code = block("from theirs import")
    code = code.replace("from theirs", f"from {__name__}").replace("mypaper.net", "othernet.net")
    (tmp_path / "othernet").mkdir()
    (tmp_path / "othernet" / "__init__.py").write_text("")
    (tmp_path / "othernet" / "net.py").write_text(code)
    (tmp_path / "othernet" / "nothing.py").write_text("Config = None")
    unwrapped = code[: code.index("def build")].replace("othernet.net", "othernet.module")
    unwrapped += "def build(config):\n    return Network(rngs=nnx.Rngs(0))\n"
    (tmp_path / "othernet" / "module.py").write_text(unwrapped)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


CONFIG = """
from configs.base import experiment
from dml_jax.config import Data, Evaluation, Group, Train
from dml_jax.methods import baseline
from mypaper import net

def get_config(variant=None):
    return experiment(
        "paper",
        data=Data(name="digits", batch_size=16, images_per_class=4, crop="centre", resize=32, image_size=32),
        backbone=net.Config(),
        method=baseline.make_config("mypaper.losses.my_loss", embedding_dim=8),
        train=Train(groups={name: Group(1e-3) for name in baseline.GROUPS}, steps=1),
        evaluation=Evaluation(cluster=False),
    )
"""


@pytest.fixture
def paper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The guide's network and loss, unchanged, beside a configuration for few digits; `theirs` is this module."""
    monkeypatch.setattr(digits, "load", toys.few_digits(20))
    monkeypatch.setattr(run_report, "write", lambda run, results: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setitem(sys.modules, "theirs", sys.modules[__name__])
    Path("mypaper").mkdir()
    Path("mypaper/__init__.py").touch()
    Path("mypaper/net.py").write_text(block("from theirs import"))
    Path("mypaper/losses.py").write_text(block("def my_loss"))
    Path("paper.py").write_text(CONFIG)
    yield tmp_path
    for name in ("mypaper", "mypaper.net", "mypaper.losses"):
        sys.modules.pop(name, None)


@pytest.mark.slow
def test_a_convnext_of_equimo_in_commands(paper: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As the guide shows it."""
    pytest.importorskip("equimo.models")
    network = paper / "mypaper" / "net.py"
    contract = network.read_text().partition("def build")[0]
    network.write_text(contract + block("from equimo.models import"))
    test_the_contract_suffices((), capsys)


@pytest.mark.usefixtures("paper")
@pytest.mark.parametrize("options", [(), ("feature_views=2", "groups.backbone.freeze=true", "precision=bfloat16")])
def test_the_contract_suffices(options: tuple[str, ...], capsys: Any) -> None:
    """A network and a loss with nothing beyond the contract are trained, evaluated and loaded."""
    run = ["--config=paper.py", "--workdir=run", "--quiet"]
    run += [f"--config.train.{option}" for option in options]
    for mode in ("train", "evaluate"):
        code = cli.exit_code(lambda mode=mode: main.execute([*run, f"--mode={mode}"]))
        assert code == 0, capsys.readouterr().err
    assert 0 < json.loads(Path("run/results.json").read_text())["recall@1"] <= 1
    model = dml_jax.load("run")
    images = np.random.default_rng(0).integers(0, 256, (3, *model.shape, 3), np.uint8)
    rows = model.embed(list(images))
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, atol=1e-5)


@pytest.mark.usefixtures("package")
def test_a_network_of_nnx() -> None:
    """Features, gradients and statistics are those of the library, and the pixels those of its weights."""
    example: ModuleType = importlib.import_module("othernet.net")
    backbone = plugin_module("backbone", "othernet.net").build(example.Config())
    params, stats = backbone.init(jax.random.key(3), (8, 8))
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), np.uint8)
    inputs = backbone.preprocess(jnp.asarray(images))
    np.testing.assert_allclose(inputs, images / 127.5 - 1, atol=1e-6)

    theirs = Network(rngs=nnx.Rngs(jax.random.key(3)))
    for train in (False, True):
        theirs.set_attributes(use_running_average=not train, raise_if_not_found=False)

        def total(network: Any) -> jax.Array:
            return jnp.sum(network(inputs) ** 3)

        gradients = nnx.jit(nnx.grad(total))(theirs)
        theirs.set_attributes(use_running_average=True, raise_if_not_found=False)

        def loss(params: Any, train: bool = train) -> tuple[jax.Array, Any]:
            features, new = backbone.apply(params, stats, inputs, train=train)
            return jnp.sum(features**3), new

        found, new = jax.jit(jax.grad(loss, has_aux=True))(params)
        expected = example.named(gradients)
        assert set(found) == set(expected)
        for name, gradient in found.items():
            np.testing.assert_allclose(gradient, expected[name], rtol=1e-3, atol=1e-3, err_msg=name)
    moved = example.named(nnx.state(theirs, nnx.BatchStat))  # by one batch in training
    for name, array in new.items():
        assert not np.allclose(array, stats[name])
        np.testing.assert_allclose(array, moved[name], rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("package")
def test_an_import_path_that_is_no_network() -> None:
    import_code({"backbone": {"name": "othernet.nothing"}})
    with pytest.raises(ConfigError, match=r"='othernet\.nothing': does not define build\(\)"):
        plugin_module("backbone", "othernet.nothing")
    given = values(steps=1) | {"backbone": {"name": "othernet.module"}}
    import_code(given)
    with pytest.raises(ConfigError, match=r"module': its build\(\) returns a Network, not a Back"):
        build_method(resolve(given), TrainingSet(4, 16))
