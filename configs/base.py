"""The experiment every other configuration edits: each field of the shared sections once, at its default."""

from dataclasses import asdict

from ml_collections import ConfigDict

from dml_jax.config import Data, Evaluation


def base(name: str) -> ConfigDict:
    """A configuration without backbone, method and training, which have no defaults.

    Fields and their meanings stand in `dml_jax/config.py`; those of `backbone` and `method` in the module they name.
    """
    config = ConfigDict()
    config.name = name
    config.seed = 0
    config.init_from = ""
    config.data = asdict(Data())
    config.evaluation = asdict(Evaluation())
    config.paper = {}
    return config
