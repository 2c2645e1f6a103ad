"""What `folder.py` in the folder of a paper states, as HEAD and WHOLE, about its method on
EfficientNet-Lite0 and the user's own image folders."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from dml_jax.config import Group

FROZEN = Group(0.0, freeze=True)
NETWORK = Group(1e-4, weight_decay=1e-4)
LAYER = Group(3e-4, weight_decay=1e-4)
FASTER = Group(1e-3, weight_decay=1e-4)
DIMENSIONS = 512  # embedding size where the whole network is trained


class Head(NamedTuple):
    """A method on frozen features: a variant of `folder_heads.py`."""

    method: Any  # its `Config`
    groups: Mapping[str, Group]  # beside the backbone's
    batch_size: int = 64  # images per step
    cluster: bool = False  # whether NMI is evaluated


class Whole(NamedTuple):
    """A method that trains the whole network, a row of `studies/folder_methods.py`."""

    row: str
    method: Any  # its `Config`
    groups: Mapping[str, Group]
    frozen: bool = False  # whether the study also has it on frozen features
