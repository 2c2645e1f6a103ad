"""Options of a baseline: those that all losses share, and the section of the chosen loss, or of each loss of a sum.

A configuration file may hold the sections of all losses (see `as_values`), so that a command line can choose another
loss and set its options; the resolved configuration holds the sections of the chosen losses only.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import asdict, field
from functools import cache
from typing import Any

from dml_jax.errors import ConfigError, suggest
from dml_jax.options.fields import NonNegative, NonNegativeInt, PositiveInt, Probability, require, section, validate
from dml_jax.options.methods import Pooling
from dml_jax.options.methods.losses import CLASSIFIERS, OPTIONS, PAIR_LOSSES

# "loss" holds a classifier, proxies or boundaries; for most pair losses it is empty.
GROUPS = ("backbone", "embedding", "loss")


@section
class Config:
    """The options that all losses share; `config_type` adds those of a loss, `make_config` builds both."""

    name: str = "baseline"
    loss: str = "normalized_softmax"  # one of OPTIONS, or a sum such as "triplet+arcface"; sections of these names
    weights: tuple[NonNegative, ...] = ()  # of the losses; by default 1 each
    final_weights: tuple[NonNegative, ...] = ()  # reached linearly over `ramp`; by default the weights stay
    ramp: tuple[NonNegativeInt, NonNegativeInt] = (0, 0)  # first and last step of the change of the weights
    embedding_dim: PositiveInt = 512  # D
    pooling: Pooling = "avg"  # of the feature map
    layer_norm: bool = False  # of the pooled features, without scale and bias, as in Zhai & Wu and ProxyNCA++
    sample_classes: Probability = 1.0  # part of the classes, drawn for each step, that classifiers tell apart
    memory: NonNegativeInt = 0  # number of embeddings of past batches that pair losses also compare with
    memory_weight: NonNegative = 1.0  # of the loss against the memory
    memory_after: NonNegativeInt = 0  # steps before the memory is used; 1,000 in its paper

    def __post_init__(self) -> None:
        rule = f"loss={self.loss} does not compare pairs; a memory needs one of {', '.join(PAIR_LOSSES)}"
        require(self.memory == 0 or not set(PAIR_LOSSES).isdisjoint(self.losses), "memory", self.memory, rule)
        for key in ("memory_weight", "memory_after"):
            unused = self.memory == 0 and getattr(self, key) != getattr(Config, key)
            require(not unused, key, getattr(self, key), "needs a memory of past batches; set memory, or remove it")
        rule = f"loss={self.loss} is no classifier; it needs one of {', '.join(CLASSIFIERS)}"
        given = self.sample_classes
        require(given == 1 or not set(CLASSIFIERS).isdisjoint(self.losses), "sample_classes", given, rule)
        for key in ("weights", "final_weights"):
            given = getattr(self, key)
            require(len(given) in (0, len(self.losses)), key, given, f"give one for each loss of loss={self.loss}")
        require(bool(self.final_weights) == (self.ramp != (0, 0)), "ramp", self.ramp, "give it with final_weights")
        require(self.ramp[0] <= self.ramp[1], "ramp", self.ramp, "must not end before it starts")

    @property
    def losses(self) -> tuple[str, ...]:
        """The losses that are summed."""
        return tuple(self.loss.split("+"))

    @property
    def options(self) -> dict[str, Any]:
        """The options of each loss."""
        return {loss: getattr(self, loss) for loss in self.losses}


@cache
def _with_losses(loss: str) -> type[Config]:
    """`Config` with the section of each loss of a sum."""
    sections: dict[str, tuple[type, Any]] = {"loss": (str, loss)}
    for name in loss.split("+"):
        sections[name] = (OPTIONS[name], field(default_factory=OPTIONS[name]))
    annotations = {name: kind for name, (kind, _) in sections.items()}
    defaults = {name: default for name, (_, default) in sections.items()}
    return section(type("Config", (Config,), {"__annotations__": annotations, **defaults}))


def config_type(values: Mapping[str, Any]) -> type[Config]:
    """`Config` with the section of each loss that `values` choose.

    Raises:
      ConfigError: there is no such loss, or a sum names one twice.
    """
    loss = values.get("loss", Config.loss)
    names = loss.split("+") if isinstance(loss, str) else [str(loss)]
    for name in names:
        if name not in OPTIONS:
            raise ConfigError(f"method.loss={loss!r}: {suggest(name, OPTIONS)}")
    if len(set(names)) < len(names):
        raise ConfigError(f"method.loss={loss!r}: names a loss twice; give it a weight instead (method.weights)")
    return _with_losses(loss)


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
    for other in [name for name in OPTIONS if name in values and name not in kind.loss.split("+")]:
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
      loss: one of OPTIONS, or a sum of several.
      options: of the loss, or of each loss of a sum by its name; the others take their defaults.
      **shared: fields of `Config`.

    Raises:
      ConfigError: an unknown loss or option, or an invalid value.
    """
    sections = (options or {}) if "+" in loss else {loss: options or {}}
    return resolve({"loss": loss, **sections, **shared})


def as_values(config: Config) -> dict[str, Any]:
    """The configuration as nested values for a configuration file, with the default sections of all other losses."""
    return {name: asdict(options()) for name, options in OPTIONS.items()} | asdict(config)
