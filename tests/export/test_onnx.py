"""The exported ONNX model: equal outputs in onnxruntime for any batch size, for every architecture and method.

Slow: importing the converter takes ten seconds or more.
"""

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.backbones import bn_inception, deit, efficientnet_lite, googlenet, mit, resnet
from dml_jax.errors import DataError
from tests import toys
from tests.contract.methods import SMALL, method, started

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]  # those of the converter
onnxruntime = pytest.importorskip("onnxruntime")
pytest.importorskip("jax2onnx")

from onnx import load  # noqa: E402

from dml_jax.export import programs  # noqa: E402

SHAPE = (64, 64)
NETWORKS = [
    (resnet, resnet.Config(depths=(1, 1), widths=(4, 8))),
    (bn_inception, bn_inception.Config()),
    (googlenet, googlenet.Config()),
    (efficientnet_lite, efficientnet_lite.Config(depths=(1,) * 7, widths=(4, 8, 8, 8, 8, 8, 8), channels=16)),
    (deit, deit.Config(depth=2, width=32, heads=2, patch=8, distilled=True)),
    (mit, mit.Config(depths=(1, 1, 1, 1), widths=(4, 8, 8, 8), heads=(1, 2, 2, 2))),
]


def embedding_function(module: Any, config: Any, image_shape: tuple[int, int]) -> programs.Embed:
    backbone = module.build(config)
    params, stats = backbone.init(jax.random.key(0), image_shape)

    def embed(images: jax.Array) -> jax.Array:
        features, _ = backbone.apply(params, stats, backbone.preprocess(images), train=False)
        pooled = features.mean(axis=(1, 2))
        return pooled / jnp.linalg.norm(pooled, axis=1, keepdims=True)

    return embed


def check(path: Path, embed: Any, shape: tuple[int, int]) -> None:
    """Compares with the original, without the exporter's own comparison."""
    images = np.random.default_rng(7).integers(0, 256, (5, *shape, 3), dtype=np.uint8)
    (found,) = onnxruntime.InferenceSession(path).run(["embeddings"], {"images": images})
    np.testing.assert_allclose(found, embed(jnp.asarray(images)), atol=1e-4)
    assert found.dtype == np.float32


@pytest.mark.parametrize(("module", "config"), NETWORKS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_architecture(module: Any, config: Any, tmp_path: Path) -> None:
    embed = embedding_function(module, config, SHAPE)
    assert programs.write_onnx(tmp_path / "deep" / "model.onnx", embed, SHAPE) < 1e-4
    check(tmp_path / "deep" / "model.onnx", embed, SHAPE)


def test_onnxruntime_merges_norms_and_activations_with_convolutions(tmp_path: Path) -> None:
    config = efficientnet_lite.Config(depths=(1,) * 7, widths=(4, 8, 8, 8, 8, 8, 8), channels=16)
    programs.write_onnx(tmp_path / "model.onnx", embedding_function(efficientnet_lite, config, SHAPE), SHAPE)
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "merged.onnx")
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    onnxruntime.InferenceSession(tmp_path / "model.onnx", options, providers=["CPUExecutionProvider"])
    found = Counter(node.op_type for node in load(tmp_path / "merged.onnx").graph.node)
    assert found["Conv"] + found["FusedConv"] == 2 + 2 + 3 * 6
    assert not {"Sub", "Max", "Min", "Relu"} & set(found), found
    assert found["Clip"] <= 1
    assert found["Transpose"] <= 2


@pytest.mark.parametrize("name", SMALL)
def test_every_method(name: str, tmp_path: Path) -> None:
    made = method(name)
    images = toys.batch(made.hooks.views).images
    state = started(name)
    embed = partial(made.embed, state.params, state.model_state)
    programs.write_onnx(tmp_path / "model.onnx", embed, images.shape[2:4])
    check(tmp_path / "model.onnx", embed, images.shape[2:4])


def test_constants_that_only_branches_read_are_kept(tmp_path: Path) -> None:
    def embed(images: jax.Array) -> jax.Array:
        rows = images[:, :4, 0, 0].astype(jnp.float32)
        factors = jnp.asarray([[1.0, 2.0, 3.0, 4.0]])
        return jax.lax.cond(
            rows[0, 0] > 100, lambda x: jnp.maximum(x, 5) - 2, lambda x: jnp.minimum(x * factors, 300) + 0.11, rows
        )

    programs.write_onnx(tmp_path / "model.onnx", embed, SHAPE)
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx")
    for pixel in (0, 200):
        images = np.random.default_rng(7).integers(0, 256, (5, *SHAPE, 3), dtype=np.uint8)
        images[0, 0, 0, 0] = pixel
        np.testing.assert_allclose(session.run(None, {"images": images})[0], embed(jnp.asarray(images)), rtol=1e-6)


def test_what_is_not_supported_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_the_host(images: jax.Array) -> jax.Array:
        return jax.pure_callback(np.sin, jax.ShapeDtypeStruct((images.shape[0],), jnp.float32), images[:, 0, 0, 0] / 2)

    with pytest.raises(DataError, match=r"cannot be converted to ONNX \(.*'pure_callback'\); embed with dml_jax.load$"):
        programs.write_onnx(tmp_path / "x", on_the_host, SHAPE)
    monkeypatch.setattr(programs, "TOLERANCE", 0.0)
    with pytest.raises(DataError, match=r"differs from the model by .*"):
        programs.write_onnx(tmp_path / "x", lambda images: jnp.sin(images[:, 0, 0].astype(jnp.float32)), SHAPE)
    assert list(tmp_path.iterdir()) == []
