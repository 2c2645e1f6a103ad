"""Methods of deep metric learning, one module or package per paper, and the interface they share.

    from dml_jax.backbones import resnet
    from dml_jax.methods import TrainingSet, hist

    method = hist.build(hist.Config(tau=32), resnet.build(resnet.resnet50()), TrainingSet(classes=98, images=8_054))

A configuration chooses a method by the name of its module: `config.method.name`.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING

from dml_jax.methods.contract import Aux, Batch, Hooks, Method, Teaching, TrainingSet

if TYPE_CHECKING:
    from dml_jax.methods import baseline, crt, diva, group_loss, hist, mpn, student

__all__ = [
    "Aux", "Batch", "Hooks", "Method", "Teaching", "TrainingSet", "baseline", "crt", "diva", "group_loss", "hist",
    "mpn", "student",
]  # fmt: skip


def __getattr__(name: str) -> ModuleType:
    """Imports a method's module on first use."""
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
