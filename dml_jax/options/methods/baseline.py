"""Options of a baseline: those that all losses share, and the section of the chosen loss.

A configuration file may hold the sections of all losses (see `as_values`), so that a command line can choose another
loss and set its options; the resolved configuration holds the section of the chosen loss only.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field
from functools import cache
from typing import Any

from dml_jax.errors import ConfigError, suggest
from dml_jax.options.fields import NonNegative, NonNegativeInt, PositiveInt, require, section, validate
from dml_jax.options.methods import Pooling
from dml_jax.options.methods.losses import OPTIONS, PAIR_LOSSES

# "loss" holds a classifier, proxies or boundaries; for most pair losses it is empty.
GROUPS = ("backbone", "embedding", "loss")


@section
class Config:
    """The options that all losses share; `config_type` adds those of a loss, `make_config` builds both."""

    name: str = "baseline"
    loss: str = "normalized_softmax"  # one of OPTIONS; the section of this name holds its options
    embedding_dim: PositiveInt = 512  # D
    pooling: Pooling = "avg"  # of the feature map
    layer_norm: bool = False  # of the pooled features, without scale and bias, as in Zhai & Wu and ProxyNCA++
    memory: NonNegativeInt = 0  # number of embeddings of past batches that pair losses also compare with
    memory_weight: NonNegative = 1.0  # of the loss against the memory
    memory_after: NonNegativeInt = 0  # steps before the memory is used; 1,000 in its paper

    def __post_init__(self) -> None:
        rule = f"loss={self.loss} does not compare pairs; a memory needs one of {', '.join(PAIR_LOSSES)}"
        require(self.memory == 0 or self.loss in PAIR_LOSSES, "memory", self.memory, rule)

    @property
    def options(self) -> Any:
        """The options of the chosen loss."""
        return getattr(self, self.loss)


@cache
def _with_loss(loss: str) -> type[Config]:
    """`Config` with the section of a loss."""
    options = OPTIONS[loss]
    sections = {"loss": (str, loss), loss: (options, field(default_factory=options))}
    annotations = {name: kind for name, (kind, _) in sections.items()}
    defaults = {name: default for name, (_, default) in sections.items()}
    return section(type("Config", (Config,), {"__annotations__": annotations, **defaults}))


def config_type(values: Mapping[str, Any]) -> type[Config]:
    """`Config` with the section of the loss that `values` choose.

    Raises:
      ConfigError: there is no such loss.
    """
    loss = values.get("loss", Config.loss)
    if not isinstance(loss, str) or loss not in OPTIONS:
        raise ConfigError(f"method.loss={loss!r}: {suggest(str(loss), OPTIONS)}")
    return _with_loss(loss)


def resolve(values: Mapping[str, Any], path: str = "method", known: Iterable[str] = ()) -> Config:
    """Validates a section of a configuration.

    Sections of other losses are dropped if they hold only defaults.

    Args:
      values: the section, with the options of the chosen loss below its name.
      path: dotted name of the section, for messages.
      known: see `fields.validate`.

    Raises:
      ConfigError: an unknown loss, an option of another loss that differs from its default, or an invalid value.
    """
    kind, values = config_type(values), dict(values)
    for other in [name for name in OPTIONS if name in values and name != kind.loss]:
        options: Any = validate(OPTIONS[other], values.pop(other), f"{path}.{other}")
        for option in dataclasses.fields(options):
            value = getattr(options, option.name)
            if value != option.default:
                key = f"{path}.{other}.{option.name}"
                raise ConfigError(f"{key}={value!r}: is an option of another loss; {path}.loss is {kind.loss}")
    return validate(kind, values, path, known)


def make_config(loss: str = "normalized_softmax", options: Mapping[str, Any] | None = None, **shared: Any) -> Config:
    """The configuration of a baseline, e.g. `make_config("triplet", {"mining": "hard"}, embedding_dim=64)`.

    Args:
      loss: one of OPTIONS.
      options: of the loss; the others take their defaults.
      **shared: fields of `Config`.

    Raises:
      ConfigError: an unknown loss or option, or an invalid value.
    """
    return resolve({"loss": loss, loss: options or {}, **shared})


def as_values(config: Config) -> dict[str, Any]:
    """The configuration as nested values for a configuration file, with the default sections of all other losses."""
    return {name: asdict(options()) for name, options in OPTIONS.items()} | asdict(config)
