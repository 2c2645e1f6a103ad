"""The checkpoints of MPN's authors, loaded into the method: a small backbone with the authors' names."""

from pathlib import Path

import numpy as np
import pytest

from dml_jax.backbones import resnet
from dml_jax.commands import convert
from dml_jax.errors import WeightsError
from dml_jax.methods import baseline, mpn
from dml_jax.methods.contract import TrainingSet
from tests.backbones import state_dicts
from tests.commands.conftest import Fails
from tests.commands.converted import CHANNELS, TINY, linear, load_checkpoint

pytestmark = pytest.mark.usefixtures("small_networks")


def gnn(rng: np.random.Generator, d: int, classes: int, layers: int) -> state_dicts.StateDict:
    """The message passing network of MPN in the authors' names."""
    found = linear(rng, "dim_red", d, d)
    for i in range(layers):
        name = f"gnn_model.node_model.layers.{i}"
        for part in ("q_linear", "v_linear", "k_linear", "out"):
            found |= linear(rng, f"{name}.att.{part}", d, d)
        found |= linear(rng, f"{name}.linear1", 4 * d, d) | linear(rng, f"{name}.linear2", d, 4 * d)
        for norm in ("norm1", "norm2"):
            found |= {
                f"{name}.{norm}.weight": rng.random(d, np.float32),
                f"{name}.{norm}.bias": rng.random(d, np.float32),
            }
    vector = lambda: rng.random(d, np.float32)  # noqa: E731
    found |= {"bottleneck.0.weight": vector(), "bottleneck.0.bias": np.zeros(d, np.float32)}
    found |= {"bottleneck.0.running_mean": vector(), "bottleneck.0.running_var": vector()}
    found["bottleneck.0.num_batches_tracked"] = np.array(5, np.int64)
    return found | {"fc.0.weight": rng.standard_normal((classes, d)).astype(np.float32)}


def test_checkpoints_of_mpn(tiny: state_dicts.StateDict, fails: Fails) -> None:
    rng = np.random.default_rng(0)
    body = {k: v for k, v in tiny.items() if not k.startswith("fc.")}
    encoder = body | linear(rng, "red", 8, CHANNELS) | linear(rng, "fc", 5, 8)
    network = gnn(rng, 8, 5, layers=2)
    files = [
        state_dicts.write(Path("0.7029resnet50_cub.safetensors"), encoder),
        state_dicts.write(Path("gnn.safetensors"), network),
    ]
    config = mpn.Config(embedding_dim=8, layers=2, heads=2)
    method = mpn.build(config, resnet.build(TINY), TrainingSet(5, 5))
    params, state, kept = load_checkpoint(method, *files)
    assert kept == []
    np.testing.assert_array_equal(params["embedding"]["kernel"], encoder["red.weight"].T)
    np.testing.assert_array_equal(params["auxiliary"]["bias"], encoder["fc.bias"])
    np.testing.assert_array_equal(params["mpn"]["projection"]["kernel"], network["dim_red.weight"].T)
    for i in (1, 2):
        name, layer = f"gnn_model.node_model.layers.{i - 1}", params["mpn"][f"layer{i}"]
        keys, values = np.split(np.asarray(layer["key_value"]["kernel"]), 2, axis=1)
        np.testing.assert_array_equal(keys, network[f"{name}.att.k_linear.weight"].T)
        np.testing.assert_array_equal(values, network[f"{name}.att.v_linear.weight"].T)
        np.testing.assert_array_equal(layer["ff1"]["kernel"], network[f"{name}.linear1.weight"].T)
        np.testing.assert_array_equal(layer["norm2"]["scale"], network[f"{name}.norm2.weight"])
    np.testing.assert_array_equal(params["mpn"]["classifier"]["kernel"], network["fc.0.weight"].T)
    np.testing.assert_array_equal(state["neck"]["var"], network["bottleneck.0.running_var"])
    shifted = {**network, "bottleneck.0.bias": np.ones(8, np.float32)}
    state_dicts.write(files[1], shifted)
    assert "bottleneck.0.bias is not zero" in fails(convert, f"--weights={files[0]},{files[1]}", "--output=out2")


def test_checkpoint_of_another_method_is_rejected(tiny: state_dicts.StateDict) -> None:
    encoder = {k: v for k, v in tiny.items() if not k.startswith("fc.")}
    encoder |= linear(np.random.default_rng(0), "red", 8, CHANNELS) | linear(np.random.default_rng(0), "fc", 5, 8)
    file = state_dicts.write(Path("w.safetensors"), encoder)
    config = baseline.make_config("proxy_anchor", embedding_dim=16)
    with pytest.raises(
        WeightsError, match=r"auxiliary/kernel; wrong shape: .*embedding/kernel \[24, 8\] instead of \[24, 16\]"
    ):
        load_checkpoint(baseline.build(config, resnet.build(TINY), TrainingSet(5, 5)), file)
