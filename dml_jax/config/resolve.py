"""The configuration of a run, as a file in `configs/` gives it, after validation.

The sections `backbone` and `method` have a key `name`, which is the name of a module, and the options of its `Config`.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import field, replace
from typing import Annotated, Any

from annotated_types import Ge, Lt

from dml_jax.config import needs
from dml_jax.config.data import Data
from dml_jax.config.evaluation import Evaluation
from dml_jax.config.fields import flatten, keys, section, validate, with_precision
from dml_jax.config.modules import choices, module
from dml_jax.config.train import USERS, Train
from dml_jax.errors import ConfigError, suggest
from dml_jax.files import BUCKETS, utf8_path


@section
class Config:
    """One experiment; `backbone` and `method` are the `Config` of the module that their `name` names."""

    name: str  # of the experiment
    data: Data
    backbone: Any
    method: Any
    train: Train
    head: Train | None = None  # training before `train`, of all but the backbone, on its frozen features; None: none
    evaluation: Evaluation = Evaluation()
    # Published results, as fractions, by protocol of the run ("clean", "paper"), source and metric.
    paper: dict[str, dict[str, dict[str, float]]] = field(default_factory=dict)
    seed: Annotated[int, Ge(0), Lt(2**31)] = 0  # of weights, batches and augmentation
    init_from: str = ""  # work directory or directory of converted weights to start from


def published(values: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The published results beside which a run of this configuration is shown, by source and metric."""
    protocol = "paper" if values.get("train", {}).get("select") == "test" else "clean"
    found: dict[str, dict[str, float]] = values["paper"].get(protocol, {})
    return found


# Keys that hold a path.
PATHS = ("data.path", "init_from", "backbone.pretrained", "method.teacher")


def resolve(values: Mapping[str, Any], given: needs.Given = None, warn: Callable[[str], None] | None = None) -> Config:
    """Validates a whole configuration; options that are not used get their defaults.

    Args:
      values: nested mapping, as `get_config()` of a config file returns it (`ConfigDict.to_dict()`).
      given: dotted keys that the user gave, where misleading values are errors; None for all, () for a stored run.
      warn: called with the other problems of such keys.

    Raises:
      ConfigError: names the key, the value, the rule and the remedy.
    """
    config, problems = _examined(values)
    needs.report(problems, given, warn)
    if (
        config.train.precision == "bfloat16"
        and "backbone.dtype" in (given or ())
        and config.backbone.dtype != "bfloat16"
    ):
        raise ConfigError(
            f"backbone.dtype={config.backbone.dtype!r}: train.precision='bfloat16' sets it too; remove one of them"
        )
    return settled(config)


def settled(config: Config) -> Config:
    """A configuration that was made from another one: options that are not used get their defaults."""
    config, _ = needs.settled(config)
    if config.train.precision == "bfloat16":
        config = replace(config, backbone=with_precision(config.backbone, "bfloat16"))
    return config


def misleading(values: Mapping[str, Any]) -> set[str]:
    """The keys of a configuration that are errors if the user has given them."""
    with suppress(ConfigError):
        return {key for problem in _examined(values)[1] if problem.misleads for key in (problem.key, *problem.also)}
    return set()


def _examined(values: Mapping[str, Any]) -> tuple[Config, list[needs.Problem]]:
    """The configuration without the options that are not used, and all problems of it."""
    config, problems = needs.settled(_validated(values))
    # The options of a loss that is not chosen are in the values only.
    of_values = getattr(module("method", config.method.name), "unused", lambda values: ())
    return config, [*problems, *of_values(values["method"]), *needs.broken(config)]


def _validated(values: Mapping[str, Any]) -> Config:
    """A configuration whose values are valid one by one."""
    flat = flatten(values)
    for key in PATHS:
        if isinstance(flat.get(key), str) and not (key == "data.path" and flat[key].startswith(BUCKETS)):
            utf8_path(key, flat[key])
    kinds: dict[str, Any] = {"data": Data, "train": Train, "evaluation": Evaluation}
    if values.get("head") is not None:
        kinds["head"] = Train
    for kind in ("backbone", "method"):
        given = values.get(kind)
        if not isinstance(given, Mapping) or "name" not in given:
            raise ConfigError(f"{kind}.name: missing; known: {', '.join(choices(kind))}")
        found = module(kind, given["name"])
        # A module whose options depend on one another, as those of a loss on its name, has a `resolve` of its own.
        kinds[kind] = getattr(found, "resolve", found.Config)
    known = list(known_keys(values))
    sections = dict(values)
    for key, kind in kinds.items():
        given = values.get(key, {})
        sections[key] = validate(kind, given, key, known) if isinstance(kind, type) else kind(given, key, known)
    for key in values:
        if key not in Config.__dataclass_fields__:
            raise ConfigError(f"{key}: there is no such key; {suggest(key, known)}")
    config = Config(**sections)
    if "." not in config.data.name:  # a model can be used without the code of its data set
        module("data", config.data.name)
    if config.head and not (config.head.feature_views and not config.train.feature_views):
        raise ConfigError(
            "head.feature_views: must be positive, and train.feature_views 0: head trains on features first"
        )
    return config


def upgraded(values: Mapping[str, Any]) -> dict[str, Any]:
    """A stored configuration with the keys that it lacks because an earlier version has written it.

    That version trained "sgd" with Nesterov's momentum and "rmsprop" with momentum, both of 0.9; and it had the results
    of one source only, which was not named.
    """
    train, paper = values.get("train"), values.get("paper")
    if isinstance(paper, Mapping) and any(isinstance(number, float) for number in paper.values()):
        values = {**values, "paper": {"clean": {"paper (selected on test)": paper}, "paper": {"paper": paper}}}
    if not isinstance(train, Mapping) or not USERS.keys().isdisjoint(train):
        return dict(values)
    then = {"sgd": {"momentum": 0.9, "nesterov": True}, "rmsprop": {"momentum": 0.9, "alpha": 0.9}}
    added = {key: getattr(Train, key) for key in USERS} | then.get(str(train.get("optimizer")), {})
    return {**values, "train": {**train, **added}}


def known_keys(values: Mapping[str, Any]) -> Iterator[str]:
    """All dotted keys that a configuration with the backbone and method of `values` can have."""
    kinds: dict[str, type] = {"data": Data, "train": Train, "head": Train, "evaluation": Evaluation}
    for kind in ("backbone", "method"):
        found = module(kind, values[kind]["name"])
        kinds[kind] = found.config_type(values[kind]) if hasattr(found, "config_type") else found.Config
    for key in keys(Config):
        yield from keys(kinds[key], key) if key in kinds else (key,)
