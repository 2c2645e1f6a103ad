"""Vision transformers in the names of timm, transformers and DINOv2: conversion, tokens and gradients.

The references in `data/backbones/vit.npz` are by `vit_reference.py`.
"""

import json
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dml_jax.backbones import deit, dinov3, siglip, vit
from dml_jax.backbones.weights import convert as from_torch
from dml_jax.backbones.weights import converted
from tests.golden import fixtures
from tests.golden.fixtures import draw, image

pytestmark = pytest.mark.skipif("vit" not in fixtures.names("backbones"), reason="no reference of this family")
SMALL = {"depth": 2, "width": 128, "heads": 2}
DINOV2: dict[str, Any] = SMALL | {"patch": 14, "layer_scale": 1e-5, "pixels": deit.Config().pixels}
# By library and network: what conversion must find.
CONFIGS: dict[str, vit.Config] = {
    "timm_vit": deit.Config(**SMALL),
    "timm_dinov2": vit.Config(**DINOV2),
    "timm_dinov2_gated": vit.Config(**DINOV2, mlp="swiglu"),
    "timm_dinov2_reg": vit.Config(**DINOV2, registers=4),
    "transformers_vit": deit.Config(**SMALL, interpolation="bicubic"),
    "transformers_dinov2": vit.Config(**DINOV2, interpolation="bicubic"),
    "transformers_dinov2_gated": vit.Config(**DINOV2, mlp="swiglu", interpolation="bicubic"),
    "transformers_dinov2_reg": vit.Config(**DINOV2, registers=4),
    "timm_dinov3": dinov3.Config(**SMALL),
    "timm_dinov3_qkvb": dinov3.Config(**SMALL),
    "transformers_dinov3": dinov3.Config(**SMALL),
    "timm_siglip": siglip.Config(**SMALL, hidden=480),
    "transformers_siglip": siglip.Config(**SMALL, hidden=480, interpolation="bicubic"),
    "dinov2": vit.Config(**DINOV2, interpolation="offset"),
    "dinov2_gated": vit.Config(**DINOV2, mlp="swiglu", interpolation="offset"),
    "dinov2_reg": vit.Config(**DINOV2, registers=4),
}
# Others have all their layers, too.
SLOW = ("dinov2", "timm_dinov3", "timm_siglip", "timm_dinov3_qkvb")
LAYOUTS = {"timm": "timm", "transformers": "Hugging Face", "dinov2": "DINOv2"}


@cache
def reference() -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    return fixtures.load("backbones", "vit")


def convert(state: dict[str, np.ndarray]) -> from_torch.Converted:
    return from_torch.convert({"w": state})


def parameters(checkpoint: from_torch.Converted) -> Any:
    return converted.subtree(checkpoint.tensors, "backbone/params/")


def state_of(case: str) -> dict[str, np.ndarray]:
    _, meta = reference()
    shapes = meta["cases"][case]["shapes"]
    return {name: draw(meta["seed"], name, tuple(shape)) for name, shape in shapes.items()}


@cache
def tokens_and_gradients(structure: vit.Config) -> Any:
    def compute(params: Any, x: jax.Array, cotangent: jax.Array) -> Any:
        def tokens(params: Any, x: jax.Array) -> Any:
            network: Any = vit.VisionTransformer(structure)
            found = network.apply({"params": params}, x, method="encode")
            return jnp.concatenate(found, axis=1) if structure.summary == "attention" else found[0]

        found, pull = jax.vjp(tokens, params, x)
        return found, pull(cotangent)

    return jax.jit(compute)


def slopes(state: dict[str, np.ndarray], config: vit.Config, shape: Any, gradients: Any, seed: int) -> dict[str, float]:
    """By name of a tensor: the derivative along a random direction of that tensor."""

    def converted(tensors: dict[str, np.ndarray]) -> list[np.ndarray]:
        return jax.tree.leaves(vit.resize_positions(config, parameters(convert(tensors)), shape))

    shapes = {name: array.shape for name, array in state.items()}
    directions = converted({name: draw(seed, name, shape) for name, shape in shapes.items()})
    numbers = {name: np.full(shape, float(i)) for i, (name, shape) in enumerate(shapes.items())}
    found, leaves = np.zeros(len(state)), jax.tree.leaves(gradients)
    for gradient, direction, number in zip(leaves, directions, converted(numbers), strict=True):
        owner, slope = np.rint(number).astype(int), np.multiply(gradient, direction)
        found += np.bincount(owner.ravel(), slope.ravel(), len(state))
    return dict(zip(state, found.tolist(), strict=True))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("native", [False, pytest.param(True, marks=pytest.mark.slow)])
@pytest.mark.parametrize("case", [pytest.param(c, marks=pytest.mark.slow if c.endswith(SLOW) else ()) for c in CONFIGS])
def test_tokens_and_gradients(case: str, native: bool) -> None:
    """With the positions of the network's own images, and with positions that are resized as the library does."""
    z, meta = reference()
    shape = tuple(meta["cases"][case]["images"][0 if native else 1])
    key, seed, state = f"{case}/{shape[0]}x{shape[1]}", meta["seed"], state_of(case)
    converted = convert(state)
    config = converted.network.config
    assert config == CONFIGS[case]
    assert converted.layout == LAYOUTS[case.split("_")[0]]
    own = (256, 256) if config.positions == "rotary" else tuple(meta["cases"][case]["images"][0])
    assert (converted.network.side,) * 2 == own
    params = vit.resize_positions(config, parameters(converted), shape)
    x = image(seed, f"{shape}", (1, 3, *shape)).transpose(0, 2, 3, 1)
    cells = vit.grid(config, shape)
    count = 1 + config.registers + cells[0] * cells[1]
    parts = ("patch", "registers", "mlp", "layer_scale", "positions", "summary", "hidden")
    structure = vit.Config(**SMALL, **{k: getattr(config, k) for k in (*parts, "epsilon")})
    cotangent = image(seed, "cotangent", (1, count, 128))
    tokens, (gradients, of_image) = tokens_and_gradients(structure)(params, x, cotangent)
    # The libraries resize and rotate in float32, and transformers computes the softmax of ViT and SigLIP in float32.
    rounded = "dinov3" in case or case in ("transformers_vit", "transformers_siglip")
    exact = not rounded and (native or case.startswith("dinov2"))
    tolerance = 1e-9 if exact else 2e-6
    close = lambda ours, theirs: np.testing.assert_allclose(  # noqa: E731
        ours, theirs, rtol=tolerance, atol=tolerance * np.abs(theirs).max()
    )
    close(tokens[0, :, :4], z[f"{key}/tokens"])
    close(tokens[0].mean(axis=1), z[f"{key}/mean"])
    close(np.linalg.norm(tokens[0], axis=1), z[f"{key}/norm"])
    direction = image(seed + 1, f"{shape}", (1, 3, *shape)).transpose(0, 2, 3, 1)
    close(np.vdot(of_image, direction), z[f"{key}/image_slope"])
    ours = slopes(state, config, shape, gradients, seed + 1)
    names = json.loads(str(z[f"{key}/names"]))
    close([ours.pop(name) for name in names], z[f"{key}/slopes"])
    assert not any(ours.values())  # tensors that only pretraining uses


def test_feature_maps() -> None:
    """The class token is a map of one cell; the patches' map leaves registers out."""
    config = vit.Config(depth=1, width=8, heads=2, patch=4, registers=3)
    patches = vit.build(replace(config, output="patches"))
    params, _ = jax.jit(patches.init, static_argnums=1)(jax.random.key(0), (8, 12))
    x = np.random.default_rng(0).normal(size=(2, 8, 12, 3)).astype(np.float32)

    @jax.jit
    def run(params: Any, x: jax.Array) -> tuple[jax.Array, ...]:
        tokens, _ = vit.VisionTransformer(config).apply({"params": params}, x, method="encode")
        made = (vit.build(config), patches)
        return jnp.asarray(tokens), *(net.apply(params, {}, x, train=False)[0] for net in made)

    tokens, of_class, of_patches = run(params, x)
    assert tokens.shape == (2, 1 + 3 + 6, 8)
    np.testing.assert_allclose(of_class, tokens[:, None, :1], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(of_patches, tokens[:, 4:].reshape(2, 2, 3, 8), rtol=1e-5, atol=1e-6)


# The names in the files that transformers writes, beside those of its modules.
FILE_NAMES = [
    ("layers.", "encoder.layer."),
    ("encoder.encoder.", "encoder."),
    ("attention.q_proj", "attention.attention.query"),
    ("attention.k_proj", "attention.attention.key"),
    ("attention.v_proj", "attention.attention.value"),
    ("attention.o_proj", "attention.output.dense"),
    ("mlp.down_proj", "mlp.weights_out"),
]


def in_files(state: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """A state_dict of transformers 5 in the names of files, which are those of transformers 4."""
    if "head.probe" in state:  # beside the image tower there is one of texts
        tower = {f"vision_model.{name}": array for name, array in state.items()}
        texts = {"text_model.encoder.layers.0.layer_norm1.weight": np.zeros(8)}
        return tower | texts | {"logit_scale": np.zeros(1)}
    if "embeddings.patch_embeddings.weight" in state:  # DINOv3
        return {name.removeprefix("model."): array for name, array in state.items()}
    found: dict[str, np.ndarray] = {}
    for name, array in state.items():
        for old, new in FILE_NAMES:
            name = name.replace(old, new)
        if "layernorm_before.weight" in " ".join(state):  # ViT
            name = name.replace("mlp.fc1", "intermediate.dense").replace("mlp.fc2", "output.dense")
        found[name] = array
    for name in [name for name in found if "mlp.gate_proj" in name]:
        parts = (found.pop(name), found.pop(name.replace("gate", "up")))
        found[name.replace("gate_proj", "weights_in")] = np.concatenate(parts)
    return found


@pytest.mark.parametrize("case", [name for name in CONFIGS if name.startswith("transformers")])
def test_files_of_transformers(case: str) -> None:
    """They are converted to the same arrays as the state_dict, also with the prefix of a classifier's file."""
    state = state_of(case)
    expected, named = convert(state), in_files(state)
    assert set(named) != set(state)
    prefixed = {f"vit.{k}": array for k, array in named.items() if not k.startswith("pooler.")}
    for other in (named,) if "siglip" in case else (named, prefixed):
        found = convert(other)
        assert found.network.config == expected.network.config
        assert set(found.tensors) == set(expected.tensors)
        for path, tensor in found.tensors.items():
            np.testing.assert_array_equal(tensor, expected.tensors[path], err_msg=path)
