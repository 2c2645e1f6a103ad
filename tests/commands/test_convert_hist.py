"""A checkpoint of HIST's authors, loaded into the method: a small backbone with the authors' names."""

from pathlib import Path

import jax
import numpy as np
import pytest

from dml_jax.backbones import resnet
from dml_jax.methods import hist
from dml_jax.methods.contract import TrainingSet
from tests.backbones import state_dicts
from tests.commands.converted import CHANNELS, TINY, check_tiny, linear, load_checkpoint

pytestmark = pytest.mark.usefixtures("small_networks")


def test_checkpoint_of_hist(tiny: state_dicts.StateDict) -> None:
    """Embeddings equal average + max pooling, linear layer and layer norm, computed in NumPy from the checkpoint."""
    theirs = {f"model.{k}": v for k, v in (tiny | linear(np.random.default_rng(0), "embedding", 8, CHANNELS)).items()}
    file = state_dicts.write(Path("cars_resnet50_best.safetensors"), theirs)
    backbone = resnet.build(TINY)
    method = hist.build(hist.Config(embedding_dim=8, hidden_dim=8), backbone, TrainingSet(5, 5))
    params, state, kept = load_checkpoint(method, file)
    check_tiny("out", tiny)
    assert {name.split("/")[1] for name in kept if name.startswith("params")} == {"distributions", "hgnn"}
    images = np.random.default_rng(1).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    inputs = backbone.preprocess(images)
    forward = jax.jit(lambda p, s, x: backbone.apply(p, s, x, train=False)[0])
    features = forward(params["backbone"], state["backbone"], inputs)
    pooled = np.asarray(features, np.float64).mean((1, 2)) + np.asarray(features, np.float64).max((1, 2))
    x = pooled @ theirs["model.embedding.weight"].T + theirs["model.embedding.bias"]
    x = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-5)
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    np.testing.assert_allclose(jax.jit(method.embed)(params, state, images), x, atol=1e-4)
