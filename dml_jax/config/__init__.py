"""The configuration of a run: typed sections, their rules, configuration files and overrides.

fields      types with rules, and validation
data, train, evaluation   the sections that every configuration has
modules     the modules that `data.name`, `backbone.name`, `method.name` and `method.loss` name
resolve     the root `Config`, and its validation as a whole
identity    which keys tell one run from another
needs       options that have no effect without others
files       configuration files, and overrides of their keys
show        what `--mode=show` and `--help` print
"""

from dml_jax.config.data import Data
from dml_jax.config.evaluation import Evaluation, Refine
from dml_jax.config.fields import flatten
from dml_jax.config.identity import INDIFFERENT, SAME_EXPERIMENT, decisive, digest
from dml_jax.config.modules import choices, import_code, module
from dml_jax.config.resolve import PATHS, Config, published, resolve, settled
from dml_jax.config.train import Group, Train

__all__ = [
    "INDIFFERENT", "PATHS", "SAME_EXPERIMENT", "Config", "Data", "Evaluation", "Group", "Refine", "Train", "choices",
    "decisive", "digest", "flatten", "import_code", "module", "published", "resolve", "settled",
]  # fmt: skip
