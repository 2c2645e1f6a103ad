"""Options of Mix Transformers."""

from dml_jax.options.backbones import Dtype, Pixels
from dml_jax.options.fields import Fraction, PositiveInt, require, section

Stages = tuple[PositiveInt, PositiveInt, PositiveInt, PositiveInt]


@section
class Config:
    """Options of a Mix Transformer; the defaults are MiT-B1."""

    name: str = "mit"
    depths: Stages = (2, 2, 2, 2)  # blocks of each stage
    widths: Stages = (64, 128, 320, 512)  # channels of each stage
    heads: Stages = (1, 2, 5, 8)  # of the attention
    reductions: Stages = (8, 4, 2, 1)  # downsampling of the map for keys and values
    drop_path: Fraction = 0.1  # rate of stochastic depth in the last block; increases linearly from 0 in the first
    pretrained: str = "none"  # directory written by `python -m dml_jax.convert`, or "none"
    pixels: Pixels = Pixels()
    remat: bool = False  # recompute blocks in the backward pass: less memory, more time
    dtype: Dtype = "float32"  # of activations; train.precision sets it for the heads as well

    def __post_init__(self) -> None:
        divisible = all(width % heads == 0 for width, heads in zip(self.widths, self.heads, strict=True))
        require(divisible, "widths", self.widths, f"must be multiples of heads={self.heads}")


def mit_b0() -> Config:
    """3,319,392 parameters, 256 channels."""
    return Config(widths=(32, 64, 160, 256))


def mit_b1() -> Config:
    """13,151,424 parameters, 512 channels."""
    return Config()


def mit_b2() -> Config:
    """24,196,288 parameters, 512 channels."""
    return Config(depths=(3, 4, 6, 3))
