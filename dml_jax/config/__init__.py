"""The configuration of a run: typed sections, their rules, configuration files and overrides.

fields      types with rules, and validation
data, train, evaluation   the sections that every configuration has
resolve     the root `Config`, and its validation as a whole
needs       options that have no effect without others
show        what `--mode=show` and `--help` print
"""

from dml_jax.config.data import Data
from dml_jax.config.evaluation import Evaluation, Refine
from dml_jax.config.resolve import (
    INDIFFERENT,
    PATHS,
    SAME_EXPERIMENT,
    Config,
    choices,
    decisive,
    digest,
    flatten,
    known_keys,
    misleading,
    module,
    resolve,
    upgraded,
)
from dml_jax.config.train import Group, Train

__all__ = [
    "INDIFFERENT", "PATHS", "SAME_EXPERIMENT", "Config", "Data", "Evaluation", "Group", "Refine", "Train", "choices",
    "decisive", "digest", "flatten", "known_keys", "misleading", "module", "resolve", "upgraded",
]  # fmt: skip
