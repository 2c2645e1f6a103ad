"""Options of a baseline: those that all losses share, and the section of the chosen loss.

A configuration file may hold the sections of all losses (see `as_values`), so that a command line can choose another
loss and set its options; the resolved configuration holds the section of the chosen loss only.
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from dml_jax.backbones.layers import Pooling
from dml_jax.config_schema import require, suggest, validate
from dml_jax.methods.baseline.registry import LOSSES, PAIR_LOSSES


@dataclass(frozen=True)
class Config:
    """The options that all losses share; `config_type` adds those of a loss, `make_config` builds both."""

    name: str = "baseline"
    loss: str = "normalized_softmax"  # one of LOSSES; the section of this name holds its options
    embedding_dim: int = 512  # D
    pooling: Pooling = "avg"
    layer_norm: bool = False  # of the pooled features, without scale and bias, as in Zhai & Wu and ProxyNCA++
    memory: int = 0  # number of embeddings of past batches that pair losses also compare with
    memory_weight: float = 1.0  # of the loss against the memory
    memory_after: int = 0  # steps before the memory is used; 1,000 in its paper

    def __post_init__(self) -> None:
        require(self.embedding_dim > 0, "method.embedding_dim", self.embedding_dim, "must be positive")
        require(self.memory >= 0, "method.memory", self.memory, "must not be negative")
        require(
            self.memory == 0 or self.loss in PAIR_LOSSES,
            "method.memory",
            self.memory,
            f"method.loss={self.loss} does not compare pairs; a memory needs one of {', '.join(PAIR_LOSSES)}",
        )
        require(self.memory_weight >= 0, "method.memory_weight", self.memory_weight, "must not be negative")
        require(self.memory_after >= 0, "method.memory_after", self.memory_after, "must not be negative")

    @property
    def options(self) -> Any:
        """The options of the chosen loss."""
        return getattr(self, self.loss)


@cache
def config_type(loss: str) -> type[Config]:
    """`Config` with the section of a loss."""
    options = LOSSES[loss].options
    sections = [("loss", str, loss), (loss, options, field(default_factory=options))]
    return dataclasses.make_dataclass("Config", sections, bases=(Config,), frozen=True)


def resolve(values: Mapping[str, Any], path: str = "method") -> Config:
    """Validates a section of a configuration.

    Sections of other losses are dropped if they hold only defaults.

    Args:
      values: the section, with the options of the chosen loss below its name.
      path: dotted name of the section, for messages.

    Raises:
      ConfigError: an unknown loss, an option of another loss that differs from its default, or an invalid value.
    """
    values = dict(values)
    loss = values.get("loss", Config.loss)
    require(isinstance(loss, str) and loss in LOSSES, f"{path}.loss", loss, suggest(str(loss), LOSSES))
    for other in [name for name in LOSSES if name in values and name != loss]:
        options: Any = validate(LOSSES[other].options, values.pop(other), f"{path}.{other}")
        for option in dataclasses.fields(options):
            value = getattr(options, option.name)
            key = f"{path}.{other}.{option.name}"
            require(value == option.default, key, value, f"is an option of another loss; {path}.loss is {loss}")
    return validate(config_type(loss), values, path)


def make_config(loss: str = "normalized_softmax", options: Mapping[str, Any] | None = None, **shared: Any) -> Config:
    """The configuration of a baseline, e.g. `make_config("triplet", {"mining": "hard"}, embedding_dim=64)`.

    Args:
      loss: one of LOSSES.
      options: of the loss; the others take their defaults.
      **shared: fields of `Config`.

    Raises:
      ConfigError: an unknown loss or option, or an invalid value.
    """
    return resolve({"loss": loss, loss: options or {}, **shared})


def as_values(config: Config) -> dict[str, Any]:
    """The configuration as nested values for a configuration file, with the default sections of all other losses."""
    return {name: asdict(entry.options()) for name, entry in LOSSES.items()} | asdict(config)
