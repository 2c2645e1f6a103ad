"""The configuration of a run: typed sections, their rules, configuration files and overrides."""

from dml_jax.config.fields import flatten
from dml_jax.config.modules import choices, import_code, plugin_module
from dml_jax.config.resolve import (
    LENGTH,
    Config,
    decisive,
    published,
    resolve,
)
from dml_jax.config.sections import Data, Evaluation, Group, Refine, Train

__all__ = [
    "LENGTH",
    "Config",
    "Data",
    "Evaluation",
    "Group",
    "Refine",
    "Train",
    "choices",
    "decisive",
    "flatten",
    "import_code",
    "plugin_module",
    "published",
    "resolve",
]
