"""Options of vision transformers."""

from dataclasses import replace
from typing import Literal

from dml_jax.options.backbones import Dtype, Pixels
from dml_jax.options.fields import Fraction, NonNegative, NonNegativeInt, PositiveInt, require, section

Size = Literal["small", "base", "large", "giant"]
Interpolation = Literal["antialiased", "bicubic", "offset"]

HALF = Pixels(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))  # of the weights that Google and timm trained ("augreg")


@section
class Config:
    """Options of a vision transformer; the defaults are ViT-S/16."""

    name: str = "vit"
    output: Literal["class", "patches"] = "class"  # the class token as a map of one cell, or the map of the patches
    distilled: bool = False  # with a distillation token (DeiT)
    registers: NonNegativeInt = 0  # more tokens without a position, which the output leaves out (DINOv2)
    depth: PositiveInt = 12  # blocks
    width: PositiveInt = 384  # channels
    heads: PositiveInt = 6  # of the attention
    patch: PositiveInt = 16  # side in pixels
    mlp: Literal["gelu", "swiglu"] = "gelu"  # swiglu: gated, in DINOv2's ViT-g
    layer_scale: NonNegative = 0.0  # initial scale of each channel of the residual branches; 0: no scales
    # How pretrained positions are resized for other image sizes: as timm and DINOv2 with registers, as transformers, or
    # as the code of DINO and of DINOv2 without registers.
    interpolation: Interpolation = "antialiased"
    drop_path: Fraction = 0.0  # rate of stochastic depth in the last block; increases linearly from 0 in the first
    frozen_blocks: NonNegativeInt = 0  # the first blocks, which are not trained; if any, nor is the embedding below
    pretrained: str = "none"  # directory written by `python -m dml_jax.convert`, or "none"
    pixels: Pixels = HALF
    remat: bool = False  # recompute blocks in the backward pass: less memory, more time
    dtype: Dtype = "float32"  # of activations; train.precision sets it for the heads as well

    def __post_init__(self) -> None:
        require(self.width % self.heads == 0, "width", self.width, f"must be a multiple of heads={self.heads}")
        rule = f"must not exceed depth={self.depth}"
        require(self.frozen_blocks <= self.depth, "frozen_blocks", self.frozen_blocks, rule)


def vit(size: Size) -> Config:
    """ViT-S, B or L with patches of 16 pixels, as timm publishes them ("augreg").

    21,665,664, 85,798,656 or 303,301,632 parameters; 384, 768 or 1,024 channels.
    """
    depth, width, heads = {
        "small": (12, 384, 6), "base": (12, 768, 12), "large": (24, 1024, 16), "giant": (40, 1536, 24)
    }[size]  # fmt: skip
    return Config(depth=depth, width=width, heads=heads)


def dino(size: Literal["small", "base"], patch: Literal[8, 16]) -> Config:
    """ViT-S or B trained without labels by DINO (Caron et al., ICCV 2021); as large as `vit`."""
    return replace(vit(size), patch=patch, interpolation="offset", pixels=Pixels())


def dinov2(size: Size, *, registers: bool = False) -> Config:
    """ViT-S, B, L or g with patches of 14 pixels trained without labels by DINOv2 (Oquab et al., TMLR 2024).

    22,056,192, 86,579,712, 304,367,616 or 1,136,479,232 parameters, for images of 518 pixels; 384, 768, 1,024 or 1,536
    channels. With four registers (Darcet et al., ICLR 2024), 4 * channels parameters more.
    """
    return replace(
        vit(size),
        patch=14,
        registers=4 if registers else 0,
        mlp="swiglu" if size == "giant" else "gelu",
        layer_scale=1e-5,
        interpolation="antialiased" if registers else "offset",
        pixels=Pixels(),
    )


def published() -> dict[str, Config]:
    """The published networks by name, as their authors call them."""
    letters: dict[str, Size] = {"s": "small", "b": "base", "l": "large", "g": "giant"}
    found = {"vit_small": vit("small"), "vit_base": vit("base"), "vit_large": vit("large")}
    found |= {"dino_vits16": dino("small", 16), "dino_vits8": dino("small", 8)}
    found |= {"dino_vitb16": dino("base", 16), "dino_vitb8": dino("base", 8)}
    for letter, size in letters.items():
        found[f"dinov2_vit{letter}14"] = dinov2(size)
        found[f"dinov2_vit{letter}14_reg"] = dinov2(size, registers=True)
    return found
