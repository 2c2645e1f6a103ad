"""The configuration of a run after validation, and the options that tell one run from another.

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
# Compared separately: a longer run may begin with the same steps.
LENGTH = ("train.steps", "train.epochs")
Published = dict[str, dict[str, dict[str, float]]]


@section
class Config:
    """One experiment; `backbone` and `method` are each the `Config` of the module called `name`.

    Attributes:
      name: Name of the experiment in tables and of its work directory.
      data: Which images are used, and how they become batches.
      backbone: The network; its options are the `Config` of the module `backbone.name`.
      method: The method; its options are the `Config` of the module `method.name`.
      train: Length, optimizer and schedule of the training.
      evaluation: How embeddings are evaluated.
      paper: Published results, as fractions, by protocol of the run ("clean" or "paper"), source
        and metric.
      seed: Seed of the initial weights, the batches and the augmentation.
      init_from: Work directory of a run, or directory of converted weights, from which training
        starts; "" starts from the initial weights.
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
    """The published results shown beside a run of this configuration, by source and metric."""
    protocol = "paper" if values.get("train", {}).get("select") == "test" else "clean"
    return values["paper"].get(protocol, {})


def resolve(
    values: Values, typed: Collection[str] = (), warn: Callable[[str], None] | None = None
) -> Config:
    """Checks everything about a configuration that does not need its data.

    Options without effect take their defaults, so that runs that differ in them are the same.

    Args:
      values: nested, as `load_config` returns them.
      typed: dotted keys that the command line sets. An option without effect among them is an
        error.
      warn: called with one sentence for each of the others.
    """
    config = _validated(values)
    unused = rules.inert(config)
    for key, text in (unused | rules.doubtful(config)).items():
        if key in typed:
            raise ConfigError(text)
        if warn is not None:
            warn(text)
    rounded = config.train.precision == "bfloat16"
    if rounded and "backbone.dtype" in typed and config.backbone.dtype != "bfloat16":
        problem = "train.precision='bfloat16' sets it too; remove one of them"
        raise ConfigError(f"backbone.dtype={config.backbone.dtype!r}: {problem}")
    config = rules.at_defaults(config, unused)
    if rounded:
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
    made = rules.validate(kind, values)
    if "." not in made.data.name:  # a model can be used without the code of its data set
        plugin_module("data", made.data.name)
    return Config(**{option.name: getattr(made, option.name) for option in fields(Config)})


@cache
def _with_types(*kinds: Any) -> type[Config]:
    annotations = dict(zip(SECTIONS, kinds, strict=True))
    evaluation = annotations["evaluation"]
    annotations["evaluation"] = Annotated[evaluation, Effect.NONE]
    return section(type("Config", (Config,), {"__annotations__": annotations}))


def _known_types(values: Values) -> type[Config]:
    """The types of a configuration's options; Any for options whose code is not available."""
    known: list[Any] = [kind or Any for kind in SECTIONS.values()]
    for place, name in enumerate(SECTIONS):
        with suppress(UserError):
            known[place] = section_type(name, values)
    return _with_types(*known)


def same_experiment(values: Values, keys: Iterable[str]) -> bool:
    """Whether the published numbers also hold for other values at these keys."""
    kind: Any = _known_types(values)
    same = Mark.SAME_EXPERIMENT
    return all(key == PRETRAINED or same in rules.declared(kind, key) for key in keys)


def decisive(values: Mapping[str, Any], *, selecting: bool = True) -> dict[str, Any]:
    """The keys, with values, that determine the trained model, by the `Effect` of each option.

    Without `selecting`, models are taken to exist already. All options of a method or backbone
    whose code is not available count.
    """
    flat, kind = flatten(values), _known_types(values)
    counted: set[Effect | None] = {None}
    # A configuration that was edited by hand may lack any key.
    if flat.get("train.select") != "last":
        counted |= {Effect.SELECTION, Effect.EMBEDDING} if selecting else {Effect.SELECTION}
    ignored = {*LENGTH}
    if flat.get("data.sampler") in WITHOUT_CLASSES:
        ignored.add("data.images_per_class")  # only the size of test-time batches
    keys = [key for key in flat if key not in ignored and rules.effect(kind, key) in counted]
    return {key: flat[key] for key in keys}
