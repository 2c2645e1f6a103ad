"""A checkpoint of DiVA's authors, loaded into the method: a small backbone with the authors' names."""

from pathlib import Path

import numpy as np
import pytest

from dml_jax.backbones import resnet
from dml_jax.methods import diva
from dml_jax.methods.contract import TrainingSet
from tests.backbones import state_dicts
from tests.commands.converted import CHANNELS, TINY, linear, load_checkpoint

pytestmark = pytest.mark.usefixtures("small_networks")


def test_checkpoint_of_diva(tiny: state_dicts.StateDict) -> None:
    """Blocks stored twice, one layer per task."""
    rng = np.random.default_rng(0)
    tasks = ("discriminative", "selfsimilarity", "shared", "intra")
    heads = {k: v for task in tasks for k, v in linear(rng, f"model.last_linear.{task}", 8, CHANNELS).items()}
    body = {f"model.{k}": v for k, v in tiny.items() if not k.startswith("fc.")}
    twice = {f"layer_blocks.{int(k[5]) - 1}.{k.split('.', 1)[1]}": v for k, v in tiny.items() if k.startswith("layer")}
    method = diva.build(diva.Config(embedding_dim=8), resnet.build(TINY), TrainingSet(5, 5))
    params, _, kept = load_checkpoint(method, state_dicts.write(Path("w.safetensors"), body | twice | heads))
    for task in tasks:
        np.testing.assert_array_equal(params["heads"][task]["kernel"], heads[f"model.last_linear.{task}.weight"].T)
    assert not [name for name in kept if name.startswith(("params/backbone", "params/heads", "state/backbone"))]
