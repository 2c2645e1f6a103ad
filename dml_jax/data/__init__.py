"""Data sets, samplers, transforms and the input pipeline.

options = Data(name="digits", batch_size=64, images_per_class=4)
train = load(options)["train"]
sampler = samplers.build(options, train.labels, seed=0)
with pipeline.training(train, sampler, options, seed=0, stop=100) as batches:
    for images, labels, index in batches:
        ...
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dml_jax.config import Data
    from dml_jax.data import pipeline, samplers
    from dml_jax.data.formats import load
    from dml_jax.data.split import Split

__all__ = ["Data", "Split", "load", "pipeline", "samplers"]

_HOME = {"Data": "dml_jax.config", "Split": "dml_jax.data.split", "load": "dml_jax.data.formats"}


def __getattr__(name: str) -> Any:
    """Imports a public name on first use, so that commands which only list files start fast."""
    if name in _HOME:
        return getattr(importlib.import_module(_HOME[name]), name)
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
