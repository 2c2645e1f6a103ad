"""The example of docs/guides/extend.md: a network of Flax's nnx as a backbone."""

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from dml_jax import config as configs
from dml_jax.errors import ConfigError

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "extend.md"


class Network(nnx.Module):
    """A convolution and a batch norm."""

    def __init__(self, *, rngs: nnx.Rngs) -> None:
        self.conv = nnx.Conv(3, 16, (3, 3), strides=2, rngs=rngs)
        self.norm = nnx.BatchNorm(16, momentum=0.9, rngs=rngs)

    def __call__(self, x: jax.Array) -> jax.Array:
        return nnx.relu(self.norm(self.conv(x)))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the example is `othernet.net`."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    code = next(block for block in blocks if "from theirs import Network" in block)
    code = code.replace("from theirs", f"from {__name__}").replace("mypaper.net", "othernet.net")
    (tmp_path / "othernet").mkdir()
    (tmp_path / "othernet" / "__init__.py").write_text("")
    (tmp_path / "othernet" / "net.py").write_text(code)
    (tmp_path / "othernet" / "nothing.py").write_text("Config = None")
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("package")
def test_a_network_of_nnx() -> None:
    """Features, gradients and statistics are those of the library, and the pixels those of its weights."""
    example: ModuleType = importlib.import_module("othernet.net")
    backbone = configs.module("backbone", "othernet.net").build(example.Config())
    params, stats = backbone.init(jax.random.key(3), (8, 8))
    images = np.random.default_rng(0).integers(0, 256, (4, 8, 8, 3), np.uint8)
    inputs = backbone.preprocess(jnp.asarray(images))
    np.testing.assert_allclose(inputs, images / 127.5 - 1, atol=1e-6)

    theirs = Network(rngs=nnx.Rngs(jax.random.key(3)))
    for train in (False, True):
        theirs.set_attributes(use_running_average=not train, raise_if_not_found=False)

        def total(network: Any) -> jax.Array:
            return jnp.sum(network(inputs) ** 3)

        gradients = nnx.grad(total)(theirs)
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
    configs.import_code({"backbone": {"name": "othernet.nothing"}})
    with pytest.raises(ConfigError, match=r"backbone\.name='othernet\.nothing': does not define build\(\)"):
        configs.module("backbone", "othernet.nothing")
