"""The common base of all configurations: every field of the shared sections at its default."""

from dataclasses import asdict

from ml_collections import ConfigDict

from dml_jax.config import Data, Evaluation


def base(name: str) -> ConfigDict:
    """A configuration without `backbone`, `method` and `train`, which have no defaults.

    `dml_jax/config.py` documents the fields; those of `backbone` and `method` are in the module that `name` selects.
    """
    config = ConfigDict()
    config.name = name
    config.seed = 0
    config.init_from = ""
    config.data = asdict(Data())
    config.head = None
    config.evaluation = asdict(Evaluation())
    config.paper = {}
    return config
