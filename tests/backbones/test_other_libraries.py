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
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
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
    yield tmp_path
    for name in [name for name in sys.modules if name.partition(".")[0] == "othernet"]:
        del sys.modules[name]


CONFIG = """
from dataclasses import asdict

from configs import digits_baseline
from othernet import net

def get_config():
    config = digits_baseline.get_config().unlock()
    del config.backbone
    config.backbone = asdict(net.Config())
    return config
"""


@pytest.mark.parametrize("library", ["theirs", pytest.param("equimo.models", marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", [(), ("feature_views=2", "groups.backbone.freeze=true", "precision=bfloat16")])
def test_the_contract_suffices(
    library: str, options: tuple[str, ...], package: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    """The guide's networks and loss, with nothing beyond the contract, are trained, evaluated and loaded."""
    if library != "theirs":
        pytest.importorskip(library)
        network = package / "othernet" / "net.py"
        network.write_text(network.read_text().partition("def build")[0] + block(f"from {library} import"))
    (package / "othernet" / "losses.py").write_text(block("def my_loss"))
    monkeypatch.setattr(digits, "load", toys.few_digits(20))
    monkeypatch.setattr(run_report, "write", lambda run, results: None)
    (package / "paper.py").write_text(CONFIG)
    monkeypatch.chdir(package)
    chosen = ["method.loss=othernet.losses.my_loss", "data.crop=centre", "data.resize=32"]
    chosen += ["data.image_size=32", "data.batch_size=16", "train.steps=1", "evaluation.controls=false"]
    chosen += ["evaluation.cluster=false", *(f"train.{option}" for option in options)]
    given = ["--config=paper.py", "--workdir=run", "--quiet", *(f"--config.{each}" for each in chosen)]
    for mode in ("train", "evaluate"):
        code = cli.exit_code(lambda mode=mode: main.execute([*given, f"--mode={mode}"]))
        assert code == 0, capsys.readouterr().err
    assert 0 < json.loads(Path("run/results.json").read_text())["recall@1"] <= 1
    model = dml_jax.load("run")
    rows = model.embed([*np.random.default_rng(0).integers(0, 256, (3, *model.shape, 3), np.uint8)])
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
