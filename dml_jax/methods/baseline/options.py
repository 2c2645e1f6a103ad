"""Options of a baseline: those that all losses share, and the section of the chosen loss, or of each loss of a sum.

A configuration file may hold the sections of all losses (see `as_values`), so that a command line can choose another
loss and set its options; the resolved configuration holds the sections of the chosen losses only.
"""

import dataclasses
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, field
from functools import cache
from itertools import pairwise
from typing import Annotated, Any

import jax

from dml_jax import losses
from dml_jax.backbones.layers import Pooling
from dml_jax.config import needs
from dml_jax.config.fields import NonNegative, NonNegativeInt, PositiveInt, require, section, validate
from dml_jax.config.modules import imported
from dml_jax.config.needs import Needs, RunRule
from dml_jax.errors import ConfigError, suggest
from dml_jax.losses import signature

Loss = Callable[..., jax.Array]
# "loss" holds a classifier, proxies or boundaries; for most pair losses it is empty.
GROUPS = ("backbone", "embedding", "loss")


def takes(loss: Loss, argument: str) -> bool:
    """Whether a loss has the argument."""
    return argument in inspect.signature(loss).parameters


LOSSES: dict[str, Loss] = {
    {"softmax": "cross_entropy"}.get(name, name): getattr(losses, name)
    for name in losses.__all__
    if takes(getattr(losses, name), "labels") and name != "per_anchor"
}
PAIR_LOSSES = tuple(name for name, loss in LOSSES.items() if takes(loss, "candidates"))


def find(name: str, given: Any = None) -> Loss:
    """A loss by its name in LOSSES, or by the import path of a function in a module that has been imported.

    `given` is the whole of `method.loss`, for the message of the ConfigError if there is none.
    """
    if name in LOSSES:
        return LOSSES[name]
    module, _, attribute = name.rpartition(".")
    if not module:
        raise ConfigError(f"method.loss={(given or name)!r}: {suggest(name, LOSSES)}")
    key = f"method.loss={name!r}"
    found = getattr(imported(key, module), attribute, None)
    if not (callable(found) and takes(found, "labels")):
        raise ConfigError(f"{key}: {module} has no function {attribute}(embeddings, labels)")
    return found


def section_name(loss: str) -> str:
    """The key of a loss's options: its name, without the module of another package."""
    return loss.rpartition(".")[2]


PAIRS = Needs(
    f"one of {', '.join(PAIR_LOSSES)} in method.loss",
    lambda c: any(takes(find(loss), "candidates") for loss in c.method.losses),
    misleads=True,
)
REMEMBERED = Needs("method.memory", lambda c: c.method.memory, misleads=True)
WEIGHTED = Needs(
    "losses that take weights in method.loss",
    lambda c: all(takes(find(loss), "weights") for loss in c.method.losses),
    misleads=True,
)
REACHED = RunRule(
    "the memory is not used before the last step; lower it, or train for longer",
    lambda c, run: not c.method.memory or c.method.memory_after < run.steps,
)
COMPLETED = RunRule(
    "goes beyond the last step, so the final weights are not reached; lower it, or train for longer",
    lambda c, run: c.method.ramp[1] <= run.steps,
)


@section
class Config:
    """The options that all losses share; `config_type` adds those of a loss, `make_config` builds both."""

    name: str = "baseline"
    # One of LOSSES, a sum such as "triplet+arcface", or the import path of a function; sections of these names.
    loss: str = "normalized_softmax"
    weights: tuple[NonNegative, ...] = ()  # of the losses; by default 1 each
    final_weights: tuple[NonNegative, ...] = ()  # reached linearly over `ramp`; by default the weights stay
    # First and last step of the change of the weights.
    ramp: Annotated[tuple[NonNegativeInt, NonNegativeInt], COMPLETED] = (0, 0)
    embedding_dim: NonNegativeInt = 512  # D; 0: the pooled features without a linear layer
    pooling: Pooling = "avg"  # of the feature map
    layer_norm: bool = False  # of the pooled features, without scale and bias, as in Zhai & Wu and ProxyNCA++
    # p: images of a class with n images have the weight n^-p, times a constant that makes the mean weight 1.
    class_weights: Annotated[NonNegative, WEIGHTED] = 0.0
    # The losses are also computed of the first so many dimensions: Matryoshka representation learning.
    prefixes: tuple[PositiveInt, ...] = ()
    prefix_weights: tuple[NonNegative, ...] = ()  # of the losses of the prefixes; by default 1 each, as published
    # Number of embeddings of past batches that pair losses also compare with.
    memory: Annotated[NonNegativeInt, PAIRS] = 0
    memory_weight: Annotated[NonNegative, REMEMBERED] = 1.0  # of the loss against the memory
    # Steps before the memory is used; 1,000 in its paper.
    memory_after: Annotated[NonNegativeInt, REMEMBERED, REACHED] = 0

    def __post_init__(self) -> None:
        for key in ("weights", "final_weights"):
            given = getattr(self, key)
            require(len(given) in (0, len(self.losses)), key, given, f"give one for each loss of loss={self.loss}")
        shorter = all(a < b for a, b in pairwise((*self.prefixes, self.embedding_dim)))
        rule = f"must be increasing and less than embedding_dim={self.embedding_dim}"
        require(shorter, "prefixes", self.prefixes, rule)
        both = len(self.prefix_weights) in (0, len(self.prefixes))
        require(both, "prefix_weights", self.prefix_weights, f"give one for each of prefixes={self.prefixes}")
        require(bool(self.final_weights) == (self.ramp != (0, 0)), "ramp", self.ramp, "give it with final_weights")
        require(self.ramp[0] <= self.ramp[1], "ramp", self.ramp, "must not end before it starts")

    @property
    def losses(self) -> tuple[str, ...]:
        """The losses that are summed."""
        return tuple(self.loss.split("+"))

    @property
    def options(self) -> dict[str, Any]:
        """The options of each loss."""
        return {loss: getattr(self, section_name(loss)) for loss in self.losses}


@cache
def _with_losses(loss: str) -> type[Config]:
    """`Config` with the section of each loss of a sum."""
    sections: dict[str, tuple[type, Any]] = {"loss": (str, loss)}
    for name in loss.split("+"):
        kind = signature.options(find(name))
        sections[section_name(name)] = (kind, field(default_factory=kind))
    annotations = {name: kind for name, (kind, _) in sections.items()}
    defaults = {name: default for name, (_, default) in sections.items()}
    return section(type("Config", (Config,), {"__annotations__": annotations, **defaults}))


def config_type(values: Mapping[str, Any]) -> type[Config]:
    """`Config` with the section of each loss that `values` choose; ConfigError for an unknown loss, or one twice."""
    loss = values.get("loss", Config.loss)
    names = loss.split("+") if isinstance(loss, str) else [str(loss)]
    for name in names:
        find(name, loss)
    if len({section_name(name) for name in names}) < len(names):
        raise ConfigError(f"method.loss={loss!r}: names a loss twice; give it a weight instead (method.weights)")
    return _with_losses(loss)


def resolve(values: Mapping[str, Any], path: str = "method", known: Iterable[str] = ()) -> Config:
    """`fields.validate` for the section, with the options of the chosen loss below its name; others are dropped."""
    kind, others = config_type(values), _other_losses(values)
    for other in others:
        validate(signature.options(LOSSES[other]), values[other], f"{path}.{other}")
    return validate(kind, {key: value for key, value in values.items() if key not in others}, path, known)


def _other_losses(values: Mapping[str, Any]) -> list[str]:
    """The losses whose sections are in `values` although they are not chosen."""
    chosen = {section_name(loss) for loss in values.get("loss", Config.loss).split("+")}
    return [name for name in LOSSES if name in values and name not in chosen]


def unused(values: Mapping[str, Any], path: str = "method") -> Iterator[needs.Problem]:
    """Options in a valid section that belong to a loss that is not chosen and differ from their defaults."""
    for other in _other_losses(values):
        for option in dataclasses.fields(signature.options(LOSSES[other])):
            value = values[other].get(option.name, option.default)
            value = tuple(value) if isinstance(value, list) else value
            if value != option.default:
                yield needs.dropped(f"{path}.{other}.{option.name}", value, f"{other} in {path}.loss", misleads=True)


def make_config(loss: str = "normalized_softmax", options: Mapping[str, Any] | None = None, **shared: Any) -> Config:
    """The configuration of a baseline, e.g. `make_config("triplet", {"mining": "hard"}, embedding_dim=64)`.

    Args:
      loss: one of LOSSES, or a sum of several.
      options: of the loss, or of each loss of a sum by its name; the others take their defaults.
      **shared: fields of `Config`.

    Raises:
      ConfigError: an unknown loss or option, or an invalid value.
    """
    sections = (options or {}) if "+" in loss else {section_name(loss): options or {}}
    return resolve({"loss": loss, **sections, **shared})


def as_values(config: Config) -> dict[str, Any]:
    """The configuration as nested values for a configuration file, with the default sections of all other losses."""
    return {name: asdict(signature.options(loss)()) for name, loss in LOSSES.items()} | asdict(config)
