"""Options of DeiT."""

from typing import Literal

from dml_jax.options.backbones import Pixels, vit
from dml_jax.options.fields import section


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
