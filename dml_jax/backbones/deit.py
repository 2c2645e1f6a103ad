"""Training data-efficient image transformers & distillation through attention (Touvron et al., ICML 2021).

DeiT-S is the ViT-S/16 of `vit.py`; the distilled variant has a second token and a second classifier. 21,665,664
parameters without the classifier, 21,666,432 distilled.
"""

from typing import Literal

from dml_jax.backbones import vit
from dml_jax.backbones.contract import Backbone
from dml_jax.backbones.pixels import Pixels
from dml_jax.config.fields import section

__all__ = ["Config", "build", "deit_base", "deit_small", "deit_small_distilled"]


@section
class Config(vit.Config):
    """Options of a DeiT, a vision transformer with other weights; the defaults are DeiT-S."""

    name: str = "deit"
    output: Literal["class", "patches"] = "patches"  # the class token as a map of one cell, or the map of the patches
    pixels: Pixels = Pixels()


def deit_small() -> Config:
    """21,665,664 parameters, 384 channels."""
    return Config()


def deit_small_distilled() -> Config:
    """21,666,432 parameters, 384 channels."""
    return Config(distilled=True)


def deit_base() -> Config:
    """85,798,656 parameters, 768 channels."""
    return Config(width=768, heads=12)


def build(config: Config) -> Backbone:
    """A DeiT as a backbone; see `vit.build`."""
    size = "base" if config.width == 768 else "small"
    source = f"hf://timm/deit_{size}_{'distilled_' if config.distilled else ''}patch16_224.fb_in1k"
    return vit.build(config, source)
