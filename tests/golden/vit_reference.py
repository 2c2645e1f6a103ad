"""Outputs and gradients of small vision transformers by timm and transformers, in float64; needs torch and both.

    python -m tests.golden.vit_reference

writes `data/backbones/vit.npz`, which `test_vit.py` reads; the FORMAT.md there describes it. DINOv2's code is no
package: its networks are timm's, with the names of the published files, and with the positions added as by
`prepare_tokens_with_masks` and resized as by `interpolate_pos_encoding` of its `vision_transformer.py`, with the
arguments in its `hub/backbones.py`.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

SEED = 18
WIDTH, DEPTH, HEADS, REGISTERS = 128, 2, 2, 4
# Channels inside the MLPs of SigLIP; those of So400m are no multiple of the width either.
HIDDEN = 480
# Of timm's SwiGLU; 344: two thirds of 4 * WIDTH, as a multiple of 8.
GATED = {"mlp_ratio": 2 * 344 / WIDTH}
# By patch: shape of the images that the positions are for, and another one.
SHAPES = {16: ((64, 64), (48, 96)), 14: ((70, 70), (42, 98))}
OF_TIMM = {"embed_dim": WIDTH, "depth": DEPTH, "num_heads": HEADS}
OF_TRANSFORMERS = {
    "hidden_size": WIDTH, "num_hidden_layers": DEPTH, "num_attention_heads": HEADS,
    "attn_implementation": "eager",
}  # fmt: skip
FILE = Path(__file__).parent / "data" / "backbones" / "vit.npz"

State = dict[str, Any]  # tensors by name


class Case(NamedTuple):
    """A network in the names of a library.

    Attributes:
      patch: side in pixels.
      shapes: of the tensors, by name.
      tokens: (tensors, images [B, 3, H, W]) -> [B, N, WIDTH] after the final norm, followed by
        their attention pooling if the network has it.
    """

    patch: int
    shapes: dict[str, tuple[int, ...]]
    tokens: Callable[[State, Any], Any]


def timm_network(patch: int, image: tuple[int, int], **options: Any) -> Any:
    from timm.layers import SwiGLUPacked
    from timm.models.vision_transformer import VisionTransformer

    if options.get("mlp_ratio") == GATED["mlp_ratio"]:
        options |= {"mlp_layer": SwiGLUPacked, "act_layer": "silu"}
    model = VisionTransformer(image, patch, num_classes=0, **OF_TIMM, **options)
    pooled = options.get("global_pool") == "map"
    model.forward = with_pooling(model) if pooled else model.forward_features
    return model.eval()


def with_pooling(model: Any) -> Callable[[Any], Any]:
    import torch

    def forward(x: Any) -> Any:
        tokens = model.forward_features(x)
        return torch.cat([tokens, model.attn_pool(tokens)[:, None]], dim=1)

    return forward


def timm_dinov3(separate_bias: bool) -> Case:
    """As `vit_small_patch16_dinov3` or, with biases of queries and values, `vit_small_patch16_dinov3_qkvb`."""
    from functools import partial

    from timm.models.eva import Eva
    from torch.func import functional_call
    from torch.nn import LayerNorm

    rope = {"rope_type": "dinov3", "rope_temperature": 100, "rope_rotate_half": True}
    rope |= {"use_rot_pos_emb": True, "use_abs_pos_emb": False}
    more = {"qkv_bias": separate_bias, "init_values": 1e-5, "num_reg_tokens": REGISTERS}
    more |= {"norm_layer": partial(LayerNorm, eps=1e-5), "dynamic_img_size": True}
    model = Eva(SHAPES[16][0], 16, num_classes=0, use_fc_norm=False, **OF_TIMM, **rope, **more)
    model = model.eval()
    model.forward = model.forward_features
    return Case(16, shapes_of(model), lambda state, x: functional_call(model, state, (x,)))


def transformers_dinov3() -> Case:
    """As DINOv3 is published, with the default epsilon."""
    import transformers
    from torch.func import functional_call

    more = {"intermediate_size": 4 * WIDTH, "num_register_tokens": REGISTERS}
    config = transformers.DINOv3ViTConfig(**OF_TRANSFORMERS, **more, image_size=SHAPES[16][0][0])
    model = transformers.DINOv3ViTModel(config).eval()
    tokens = lambda state, x: functional_call(model, state, (x,)).last_hidden_state  # noqa: E731
    return Case(16, shapes_of(model), tokens)


def transformers_siglip() -> Case:
    import torch
    import transformers
    from torch.func import functional_call

    sizes = {"intermediate_size": HIDDEN, "image_size": SHAPES[16][0][0], "patch_size": 16}
    config = transformers.SiglipVisionConfig(**OF_TRANSFORMERS, **sizes)
    model = transformers.SiglipVisionModel(config).eval()

    def tokens(state: State, x: Any) -> Any:
        found = functional_call(model, state, (x,), {"interpolate_pos_encoding": True})
        return torch.cat([found.last_hidden_state, found.pooler_output[:, None]], dim=1)

    return Case(16, shapes_of(model), tokens)


def shapes_of(model: Any) -> dict[str, tuple[int, ...]]:
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def timm_case(patch: int, **options: Any) -> Case:
    from torch.func import functional_call

    model = timm_network(patch, SHAPES[patch][0], dynamic_img_size=True, **options)
    return Case(patch, shapes_of(model), lambda state, x: functional_call(model, state, (x,)))


def transformers_network(kind: str, patch: int, **options: Any) -> Any:
    import transformers

    sizes = {"image_size": SHAPES[patch][0][0], "patch_size": patch, "layer_norm_eps": 1e-6}
    config = getattr(transformers, f"{kind}Config")(**OF_TRANSFORMERS, **sizes, **options)
    return getattr(transformers, f"{kind}Model")(config).eval()


def transformers_case(kind: str, patch: int, **options: Any) -> Case:
    from torch.func import functional_call

    model = transformers_network(kind, patch, **options)
    more = {"interpolate_pos_encoding": True} if kind == "ViT" else {}
    tokens = lambda state, x: functional_call(model, state, (x,), more).last_hidden_state  # noqa: E731
    return Case(patch, shapes_of(model), tokens)


def dinov2_case(registers: int = 0, **options: Any) -> Case:
    import torch
    from torch.func import functional_call

    side = SHAPES[14][0][0] // 14
    theirs = {"reg_token": "register_tokens"}
    if options:
        theirs |= {"mlp.fc1": "mlp.w12", "mlp.fc2": "mlp.w3"}
    options |= {"init_values": 1e-5, "reg_tokens": registers, "no_embed_class": True}

    def name(timm: str) -> str:
        for old, new in theirs.items():
            timm = timm.replace(old, new)
        return timm

    def tokens(state: State, x: Any) -> Any:
        size = (x.shape[2] // 14, x.shape[3] // 14)
        positions = state["pos_embed"][:, 1:].reshape(1, side, side, WIDTH).permute(0, 3, 1, 2)
        if size != (side, side):
            scale = [(n + 0.1) / side for n in size]
            how = {"size": size, "antialias": True} if registers else {"scale_factor": scale}
            positions = torch.nn.functional.interpolate(positions, mode="bicubic", **how)
        assert tuple(positions.shape[2:]) == size
        model = timm_network(14, tuple(x.shape[2:]), **options)
        named = {timm: state[name(timm)] for timm in model.state_dict()}
        named["pos_embed"] = positions.permute(0, 2, 3, 1).reshape(1, -1, WIDTH)
        named["cls_token"] = state["cls_token"] + state["pos_embed"][:, :1]
        return functional_call(model, named, (x,))

    of_timm = shapes_of(timm_network(14, SHAPES[14][0], **options))
    shapes = {name(timm): shape for timm, shape in of_timm.items()}
    shapes |= {"pos_embed": (1, 1 + side * side, WIDTH), "mask_token": (1, WIDTH)}
    return Case(14, shapes, tokens)


CASES: dict[str, Callable[[], Case]] = {
    "timm_vit": lambda: timm_case(16),
    "timm_dinov2": lambda: timm_case(14, init_values=1e-5),
    "timm_dinov2_reg": lambda: timm_case(14, init_values=1e-5, reg_tokens=REGISTERS, no_embed_class=True),
    "timm_dinov2_gated": lambda: timm_case(14, init_values=1e-5, **GATED),
    "transformers_vit": lambda: transformers_case("ViT", 16, intermediate_size=4 * WIDTH),
    "transformers_dinov2": lambda: transformers_case("Dinov2", 14),
    "transformers_dinov2_gated": lambda: transformers_case("Dinov2", 14, use_swiglu_ffn=True),
    "transformers_dinov2_reg": lambda: transformers_case("Dinov2WithRegisters", 14, num_register_tokens=REGISTERS),
    "timm_dinov3": lambda: timm_dinov3(False),
    "timm_dinov3_qkvb": lambda: timm_dinov3(True),
    "transformers_dinov3": transformers_dinov3,
    "timm_siglip": lambda: timm_case(
        16, class_token=False, global_pool="map", act_layer="gelu_tanh", mlp_ratio=HIDDEN / WIDTH
    ),
    "transformers_siglip": transformers_siglip,
    "dinov2": lambda: dinov2_case(),
    "dinov2_gated": lambda: dinov2_case(**GATED),
    "dinov2_reg": lambda: dinov2_case(registers=REGISTERS),
}


def measured(case: Case, shape: tuple[int, int]) -> dict[str, np.ndarray]:
    """Tokens, and the derivative of their product with a random array along random directions."""
    import torch

    from tests.golden.fixtures import draw, image

    drawn = {name: draw(SEED, name, size) for name, size in case.shapes.items()}
    state = {name: torch.from_numpy(array).requires_grad_() for name, array in drawn.items()}
    x = torch.from_numpy(image(SEED, f"{shape}", (1, 3, *shape))).requires_grad_()
    tokens = case.tokens(state, x)
    (tokens * torch.from_numpy(image(SEED, "cotangent", tuple(tokens.shape)))).sum().backward()
    slopes = {}
    for name, tensor in state.items():
        if tensor.grad is not None:
            along = torch.from_numpy(draw(SEED + 1, name, tuple(tensor.shape)))
            slopes[name] = float((tensor.grad * along).sum())
    found = tokens.detach().numpy()
    direction = torch.from_numpy(image(SEED + 1, f"{shape}", tuple(x.shape)))
    return {
        "tokens": found[0, :, :4],
        "mean": found.mean(axis=2)[0],
        "norm": np.linalg.norm(found, axis=2)[0],
        "slopes": np.array(list(slopes.values())),
        "image_slope": np.array(float((x.grad * direction).sum())),
        "names": np.array(json.dumps(list(slopes))),
    }


def main() -> None:
    arrays: dict[str, Any] = {}
    meta: dict[str, Any] = {"seed": SEED, "cases": {}}
    for name, make in CASES.items():
        case = make()
        meta["cases"][name] = {"shapes": case.shapes, "images": SHAPES[case.patch]}
        for shape in SHAPES[case.patch]:
            for key, value in measured(case, shape).items():
                arrays[f"{name}/{shape[0]}x{shape[1]}/{key}"] = value
    np.savez_compressed(FILE, meta=np.array(json.dumps(meta)), **arrays)


if __name__ == "__main__":
    main()
