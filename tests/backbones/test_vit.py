"""Sizes of the published vision transformers, and frozen blocks. Values and gradients: tests/golden/test_vit.py."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import traverse_util

from dml_jax.backbones import vit
from dml_jax.backbones.weights import pretrained, store
from dml_jax.errors import WeightsError

SMALL = vit.Config(depth=2, width=16, heads=2, patch=8, layer_scale=0.1)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [  # the files of DINOv2 also hold a token for masked patches
        ("dino_vits16", 21_665_664),
        ("dinov2_vits14", 22_056_576 - 384),
        pytest.param("dino_vitb8", 85_807_872, marks=pytest.mark.slow),
        ("dinov2_vits14_reg", 22_056_576 + 3 * 384),
        pytest.param("dinov2_vitb14", 86_580_480 - 768, marks=pytest.mark.slow),
        pytest.param("dinov2_vitl14", 304_368_640 - 1024, marks=pytest.mark.slow),
        pytest.param("dinov2_vitg14", 1_136_480_768 - 1536, marks=pytest.mark.slow),
    ],
)
def test_published_sizes(name: str, parameters: int) -> None:
    side = 518 if "dinov2" in name else 224
    params, _ = jax.eval_shape(lambda: vit.build(vit.PUBLISHED[name]).init(jax.random.key(0), (side, side)))
    assert sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(params)) == parameters


def written(directory: Path, architecture: dict[str, Any]) -> str:
    params, _ = vit.build(SMALL).init(jax.random.key(0), (16, 16))
    arrays = {f"backbone/params/{k}": np.asarray(v) for k, v in traverse_util.flatten_dict(params, sep="/").items()}
    store.write(directory, arrays, {"architecture": architecture})
    return str(directory)


def test_weights_for_other_heads_and_pixels(tmp_path: Path) -> None:
    """The shapes are the same, the features would be wrong: an error for the heads, a warning of the run for pixels."""
    trained = replace(SMALL, pixels=replace(vit.dino("small", 16).pixels, order="bgr"), drop_path=0.1)
    config = replace(SMALL, heads=4, pretrained=written(tmp_path / "w", asdict(trained)))
    with pytest.raises(WeightsError, match=r"w': was trained with backbone\.heads=2 instead of 4; set these values"):
        vit.build(config).init(jax.random.key(0), (16, 16))
    assert pretrained.overridden_pixels(asdict(config)) == [
        "backbone.pixels.mean=[0.485, 0.456, 0.406] instead of [0.5, 0.5, 0.5]",
        "backbone.pixels.std=[0.229, 0.224, 0.225] instead of [0.5, 0.5, 0.5]",
        "backbone.pixels.order=bgr instead of rgb",
    ]
    other = replace(trained, pretrained=config.pretrained, drop_path=0.0, remat=True, interpolation="offset")
    vit.build(other).init(jax.random.key(0), (16, 16))
    unknown = written(tmp_path / "old", {"name": "vit"})
    vit.build(replace(config, pretrained=unknown)).init(jax.random.key(0), (16, 16))


def test_frozen_blocks(tmp_path: Path) -> None:
    """They are no parameters, also of a pretrained network; outputs and the gradients of the others do not change."""
    weights = written(tmp_path / "w", asdict(SMALL))
    backbones = [vit.build(replace(SMALL, pretrained=weights, frozen_blocks=n)) for n in (0, 1)]
    x = jax.random.normal(jax.random.key(1), (2, 16, 16, 3))
    found = []
    for backbone in backbones:
        params, stats = backbone.init(jax.random.key(2), (16, 16))

        def loss(params: Any, stats: Any = stats, backbone: Any = backbone) -> Any:
            features, new = backbone.apply(params, stats, x, train=True)
            return jnp.sum(features**3), (features, new)

        found.append((stats, *jax.jit(jax.grad(loss, has_aux=True))(params)))
    (_, all_gradients, (expected, _)), (fixed, gradients, (features, new)) = found
    np.testing.assert_allclose(features, expected, rtol=1e-5)
    assert set(fixed) == {"patch_embed", "pos_embed", "cls_token", "blocks_0"}
    assert set(gradients) == {"blocks_1", "norm"}
    jax.tree.map(np.testing.assert_array_equal, new, fixed)
    for name, gradient in gradients.items():
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), gradient, all_gradients[name])
