"""Options of DeiT."""

from dml_jax.options.backbones import Dtype, Pixels
from dml_jax.options.fields import Fraction, PositiveInt, require, section


@section
class Config:
    """Options of a DeiT; the defaults are DeiT-S."""

    name: str = "deit"
    distilled: bool = False  # with a distillation token
    depth: PositiveInt = 12  # blocks
    width: PositiveInt = 384  # channels
    heads: PositiveInt = 6  # of the attention
    patch: PositiveInt = 16  # side in pixels
    drop_path: Fraction = 0.0  # rate of stochastic depth in the last block; increases linearly from 0 in the first
    pretrained: str = "none"  # directory written by `python -m dml_jax.convert`, or "none"
    pixels: Pixels = Pixels()
    remat: bool = False  # recompute blocks in the backward pass: less memory, more time
    dtype: Dtype = "float32"  # of activations; parameters are always float32

    def __post_init__(self) -> None:
        require(self.width % self.heads == 0, "width", self.width, f"must be a multiple of heads={self.heads}")


def deit_small() -> Config:
    """21,665,664 parameters, 384 channels."""
    return Config()


def deit_small_distilled() -> Config:
    """21,666,432 parameters, 384 channels."""
    return Config(distilled=True)
