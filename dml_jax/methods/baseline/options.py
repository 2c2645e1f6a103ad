"""Options of a baseline: the options that all losses share, and a section of options for each chosen loss."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import field
from functools import cache
from itertools import pairwise
from typing import Annotated, Any

import jax

from dml_jax import losses
from dml_jax.backbones.layers import Pooling
from dml_jax.config.fields import Needs, NonNegative, NonNegativeInt, PositiveInt, RunRule, require, section, validate
from dml_jax.config.modules import imported
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
)
REMEMBERED = Needs("method.memory", lambda c: c.method.memory)
WEIGHTED = Needs(
    "losses that take weights in method.loss",
    lambda c: all(takes(find(loss), "weights") for loss in c.method.losses),
)
REACHED = RunRule(
    "the memory is not used before the last step; lower it, or train for longer",
    lambda c, run: not c.method.memory or c.method.memory_after < run.steps,
)


@section
class Config:
    """The options that all losses share; `config_type` adds those of a loss, `make_config` builds both."""

    name: str = "baseline"
    # One of LOSSES, a sum such as "triplet+arcface", or the import path of a function; sections of these names.
    loss: str = "normalized_softmax"
    weights: tuple[NonNegative, ...] = ()  # of the losses; by default 1 each
    embedding_dim: NonNegativeInt = 512  # D; 0: the pooled features without a linear layer
    pooling: Pooling = "avg"  # of the feature map
    layer_norm: bool = False  # of the pooled features, without scale and bias, as in Zhai & Wu and ProxyNCA++
    # p: images of a class with n images have the weight n^-p, times a constant that makes the mean weight 1.
    class_weights: Annotated[NonNegative, WEIGHTED] = 0.0
    # The losses are also computed of the first so many dimensions: Matryoshka representation learning.
    prefixes: tuple[PositiveInt, ...] = ()
    # Number of embeddings of past batches that pair losses also compare with.
    memory: Annotated[NonNegativeInt, PAIRS] = 0
    # Steps before the memory is used; 1,000 in its paper.
    memory_after: Annotated[NonNegativeInt, REMEMBERED, REACHED] = 0

    def __post_init__(self) -> None:
        rule = f"give one for each loss of loss={self.loss}"
        require(len(self.weights) in (0, len(self.losses)), "weights", self.weights, rule)
        shorter = all(a < b for a, b in pairwise((*self.prefixes, self.embedding_dim)))
        rule = f"must be increasing and less than embedding_dim={self.embedding_dim}"
        require(shorter, "prefixes", self.prefixes, rule)

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


def resolve(values: Mapping[str, Any]) -> Config:
    """The validated section `method` of a baseline."""
    return validate(config_type(values), values, "method")


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
