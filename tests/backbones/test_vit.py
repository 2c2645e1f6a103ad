"""Networks of other libraries, and weights for other options. Values and gradients:
tests/golden/test_vit.py."""

import math
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from flax import traverse_util

from dml_jax.backbones import vit
from dml_jax.backbones.contract import Pixels
from dml_jax.backbones.weights import convert as from_torch
from dml_jax.backbones.weights import converted, known_networks
from dml_jax.errors import WeightsError

SMALL = vit.Config(depth=2, width=16, heads=2, patch=8, layer_scale=0.1)


SO400M = {"hidden_size": 1152, "num_hidden_layers": 27, "num_attention_heads": 16}
SO400M |= {"patch_size": 14, "intermediate_size": 4304}
# By library: the model, the published network that its tensors are, and the pixels of the side of its images.
LIBRARIES = [
    ("timm", "vit_small_patch16_dinov3", "dinov3_vits16", 256),
    ("timm", "vit_base_patch16_dinov3_qkvb", "dinov3_vitb16", 256),
    ("timm", "vit_large_patch16_dinov3_qkvb", "dinov3_vitl16", 256),
    ("timm", "vit_base_patch16_siglip_224", "siglip_vitb16", 224),
    ("timm", "vit_base_patch32_siglip_256", "siglip_vitb32", 256),
    ("timm", "vit_large_patch16_siglip_384", "siglip_vitl16", 384),
    ("timm", "vit_so400m_patch14_siglip_224", "siglip_so400m14", 224),
    ("timm", "vit_so400m_patch16_siglip_512", "siglip_so400m16", 512),
    ("timm", "vit_giantopt_patch16_siglip_256", "siglip_vitg16", 256),
    ("transformers", {"hidden_size": 384, "num_attention_heads": 6}, "dinov3_vits16", 256),
    ("transformers", SO400M, "siglip_so400m14", 224),
]


@pytest.mark.slow
@pytest.mark.parametrize(("library", "model", "published", "side"), LIBRARIES)
def test_networks_of_other_libraries(library: str, model: Any, published: str, side: int) -> None:
    """Every tensor of their networks is converted, and as many parameters are found as they have."""
    torch = pytest.importorskip("torch")
    other = pytest.importorskip(library)
    with torch.device("meta"):
        if library == "timm":
            made = other.create_model(model, num_classes=0)
        elif "siglip" in published:
            made = other.SiglipVisionModel(other.SiglipVisionConfig(**model))
        else:
            made = other.DINOv3ViTModel(other.DINOv3ViTConfig(num_register_tokens=4, **model))
    shapes = {name: tuple(tensor.shape) for name, tensor in made.state_dict().items()}
    zeros = {name: np.broadcast_to(np.float32(0), shape) for name, shape in shapes.items()}
    converted = from_torch.convert({"w": zeros})
    fitting = known_networks.fitting(converted.network.config, known_networks.published())
    assert fitting == [published]
    assert converted.network.side == side
    assert {"timm": "timm", "transformers": "Hugging Face"}[library] == converted.layout
    expected = sum(math.prod(shape) for name, shape in shapes.items() if "mask_token" not in name)
    if model == "vit_small_patch16_dinov3":
        expected += 12 * 2 * 384  # biases of queries and values, which are zero and left out there
    assert sum(math.prod(tensor.shape) for tensor in converted.tensors.values()) == expected


def written(directory: Path, architecture: dict[str, Any]) -> str:
    params, _ = jax.eval_shape(lambda: vit.build(SMALL).init(jax.random.key(0), (16, 16)))
    leaves = traverse_util.flatten_dict(params, sep="/").items()
    arrays = {f"backbone/params/{key}": np.zeros(leaf.shape, leaf.dtype) for key, leaf in leaves}
    converted.write(directory, arrays, {"architecture": architecture})
    return str(directory)


def test_weights_for_other_heads_and_pixels(tmp_path: Path) -> None:
    """The shapes are the same, the features would be wrong: an error for the heads, a warning of the run for pixels."""
    trained = replace(SMALL, pixels=Pixels(order="bgr"), drop_path=0.1)
    config = replace(SMALL, heads=4, pretrained=written(tmp_path / "w", asdict(trained)))
    other = r"w': the weights need backbone\.heads=2 instead of 4; set these values"
    with pytest.raises(WeightsError, match=other):
        vit.build(config).init(jax.random.key(0), (16, 16))
    assert converted.overridden_pixels(asdict(config)) == [
        "backbone.pixels.mean=[0.485, 0.456, 0.406] instead of [0.5, 0.5, 0.5]",
        "backbone.pixels.std=[0.229, 0.224, 0.225] instead of [0.5, 0.5, 0.5]",
        "backbone.pixels.order=bgr instead of rgb",
    ]
    free: dict[str, Any] = {"drop_path": 0.0, "remat": True, "interpolation": "offset"}
    same = replace(trained, pretrained=config.pretrained, **free)
    vit.build(same).init(jax.random.key(0), (16, 16))
    unknown = written(tmp_path / "old", {"name": "vit"})
    vit.build(replace(config, pretrained=unknown)).init(jax.random.key(0), (16, 16))


@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_padding_changes_no_token(positions: str) -> None:
    """Tokens up to a multiple of eight, as in bfloat16, are attended to by no other."""
    config = vit.Config(width=16, heads=2, positions=positions)
    block, rng = vit.Block(config, 0.0), np.random.default_rng(0)
    x = rng.normal(size=(2, 5, 16)).astype(np.float32)
    angles = rng.normal(size=(4, 4)).astype(np.float32) if positions == "rotary" else None
    padded = None if angles is None else np.pad(angles, ((0, 3), (0, 0)))
    shapes = jax.eval_shape(lambda: block.init(jax.random.key(2), x, 5, angles))
    params = jax.tree.map(lambda leaf: 0.3 * rng.normal(size=leaf.shape) + 0.5, shapes)
    longer = np.concatenate([x, np.ones((2, 3, 16), np.float32)], axis=1)

    @jax.jit
    def both(params: Any) -> tuple[jax.Array, jax.Array]:
        return block.apply(params, x, 5, angles), block.apply(params, longer, 5, padded)[:, :5]

    expected, found = both(params)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
