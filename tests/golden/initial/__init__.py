"""Which parameter of a configuration starts like which group of the authors' code: one module per
paper, with CASES."""

from typing import NamedTuple


class Case(NamedTuple):
    """A parameter of a configuration.

    Attributes:
      config: the file, with its variant.
      path: keys of the parameter, or of a layer with "kernel" or "scale" and "bias", joined by "/".
      channels: of the feature map.
      columns: of the kernel and the bias, by their first and last.
    """

    config: str
    path: str
    channels: int = 2048
    columns: tuple[int, int] | None = None
