"""The configuration of a run after validation, and the options that distinguish runs.

The sections `backbone` and `method` hold the `name` of a module and the options of its `Config`.
"""

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import field, fields, replace
from functools import cache
from typing import Annotated, Any

from annotated_types import Ge, Lt

from dml_jax.config import fields as rules
from dml_jax.config.fields import LIMIT, Effect, Mark, Values, flatten, section
from dml_jax.config.modules import SECTIONS, plugin_module, section_type
from dml_jax.config.sections import WITHOUT_CLASSES, Data, Evaluation, Train
from dml_jax.errors import ConfigError, UserError
from dml_jax.files import BUCKETS, expand_path

PRETRAINED = "backbone.pretrained"  # a path; every backbone has this key
# Compared separately, because a longer run may start with the same steps.
LENGTH = ("train.steps", "train.epochs")
Published = dict[str, dict[str, dict[str, float]]]


@section
class Config:
    """One experiment; `backbone` and `method` are the `Config` of the module that `name` names.

    Attributes:
      name: Name of the experiment in tables and of its work directory.
      data: Which images are used, and how they become batches.
      backbone: The network; its options are the `Config` of the module `backbone.name`.
      method: The method; its options are the `Config` of the module `method.name`.
      train: Length, optimizer and schedule of the training.
      evaluation: How embeddings are evaluated.
      paper: Published results as fractions, by protocol of the run ("clean" or "paper"), source and
        metric.
      seed: Seed of the initial weights, the batches and the augmentation.
      init_from: Work directory of a run, or directory of converted weights, to start training from;
        empty: start from the initial weights.
    """

    name: str
    data: Data
    backbone: Any
    method: Any
    train: Train
    evaluation: Annotated[Evaluation, Effect.NONE] = Evaluation()
    paper: Annotated[Published, Effect.NONE] = field(default_factory=dict)
    seed: Annotated[int, Ge(0), Lt(LIMIT), Mark.SAME_EXPERIMENT] = 0
    init_from: Annotated[str, Mark.PATH] = ""


def published(values: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The published results to compare with a run of this configuration, by source and metric."""
    protocol = "paper" if values.get("train", {}).get("select") == "test" else "clean"
    return values["paper"].get(protocol, {})


def resolve(
    values: Values, typed: Collection[str] = (), warn: Callable[[str], None] | None = None
) -> Config:
    """Checks everything about a configuration that does not need its data.

    Options without effect are reset to their defaults, so that they do not distinguish runs.

    Args:
      values: nested, as `load_config` returns them.
      typed: dotted keys that the command line sets; ConfigError if one of them has no effect.
      warn: called with a sentence for each other option without effect.
    """
    config = _validated(values)
    unused = rules.inert(config)
    for key, text in (unused | rules.doubtful(config)).items():
        if key in typed:
            raise ConfigError(text)
        if warn is not None:
            warn(text)
    in_bfloat16 = config.train.precision == "bfloat16"
    if in_bfloat16 and "backbone.dtype" in typed and config.backbone.dtype != "bfloat16":
        problem = "conflicts with train.precision='bfloat16'; remove one of them"
        raise ConfigError(f"backbone.dtype={config.backbone.dtype!r}: {problem}")
    config = rules.at_defaults(config, unused)
    if in_bfloat16:
        config = replace(config, backbone=rules.with_precision(config.backbone, "bfloat16"))
    return config


def _validated(values: Values) -> Config:
    flat = flatten(values)
    kind: Any = _with_types(*(section_type(name, values) for name in SECTIONS))
    for key, value in flat.items():
        is_path = key == PRETRAINED or Mark.PATH in rules.declared(kind, key)
        in_bucket = key == "data.path" and str(value).startswith(BUCKETS)
        if is_path and isinstance(value, str) and not in_bucket:
            expand_path(key, value)
    validated = rules.validate(kind, values)
    if "." not in validated.data.name:  # using a model does not need the code of its data set
        plugin_module("data", validated.data.name)
    return Config(**{option.name: getattr(validated, option.name) for option in fields(Config)})


@cache
def _with_types(*kinds: Any) -> type[Config]:
    annotations = dict(zip(SECTIONS, kinds, strict=True))
    evaluation = annotations["evaluation"]
    annotations["evaluation"] = Annotated[evaluation, Effect.NONE]
    return section(type("Config", (Config,), {"__annotations__": annotations}))


def _known_types(values: Values) -> type[Config]:
    """The types of a configuration's sections; Any where code is not available."""
    types: list[Any] = [kind or Any for kind in SECTIONS.values()]
    for place, name in enumerate(SECTIONS):
        with suppress(UserError):
            types[place] = section_type(name, values)
    return _with_types(*types)


def same_experiment(values: Values, keys: Iterable[str]) -> bool:
    """Whether published numbers remain valid if the values at these keys change."""
    kind: Any = _known_types(values)
    same = Mark.SAME_EXPERIMENT
    return all(key == PRETRAINED or same in rules.declared(kind, key) for key in keys)


def decisive(values: Mapping[str, Any], *, selecting: bool = True) -> dict[str, Any]:
    """The options that determine the trained model, by key, according to their `Effect`.

    Without `selecting`, models already exist. If the code of a method or backbone is not available,
    all its options are included.
    """
    flat, kind = flatten(values), _known_types(values)
    effects: set[Effect | None] = {None}
    # Any key may be missing if the configuration was edited by hand.
    if flat.get("train.select") != "last":
        effects |= {Effect.SELECTION, Effect.EMBEDDING} if selecting else {Effect.SELECTION}
    ignored = {*LENGTH}
    if flat.get("data.sampler") in WITHOUT_CLASSES:
        ignored.add("data.images_per_class")  # only sets the size of test-time batches
    keys = [key for key in flat if key not in ignored and rules.effect(kind, key) in effects]
    return {key: flat[key] for key in keys}
