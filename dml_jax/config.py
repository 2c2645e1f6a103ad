"""The configuration of a run, as a file in `configs/` gives it, after validation.

The sections `backbone` and `method` have a key `name`, which is the name of a module, and the options in
`dml_jax/options/backbones` and `dml_jax/options/methods`.
"""

import hashlib
import importlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, field, replace
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from annotated_types import Ge, Lt

from dml_jax.errors import ConfigError, suggest
from dml_jax.files import utf8_path
from dml_jax.options.data import WITHOUT_CLASSES, Data
from dml_jax.options.evaluation import Evaluation, Refine
from dml_jax.options.fields import keys, section, validate
from dml_jax.options.train import USERS, Group, Train

__all__ = ["Config", "Data", "Evaluation", "Group", "Refine", "Train"]


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
    paper: dict[str, float] = field(default_factory=dict)  # the paper's numbers, as fractions, for the result table
    seed: Annotated[int, Ge(0), Lt(2**31)] = 0  # of weights, batches and augmentation
    init_from: str = ""  # work directory or directory of converted weights to start from


# Keys that change no bit of the trained model, so that a run may be resumed with other values. (If the best model is
# selected, when and how it is evaluated does matter, see `decisive`.)
INDIFFERENT = (
    "data.path", "data.threads", "data.workers", "data.prefetch", "train.steps", "train.epochs", "train.log_every",
    "train.evaluate_every", "train.checkpoint_every", "train.keep_every", "evaluation", "paper",
)  # fmt: skip
# Keys that do not change what a published number was measured with.
SAME_EXPERIMENT = (
    "seed", "data.path", "data.threads", "data.workers", "data.prefetch", "train.log_every", "train.checkpoint_every",
    "train.keep_every", "evaluation.ks", "evaluation.full_ranking", "evaluation.batch_size", "evaluation.refine",
    "evaluation.refine_clusters", "evaluation.refine_eps", "evaluation.refine_min_samples", "evaluation.controls",
    "backbone.pretrained",
)  # fmt: skip
# Keys that hold a path.
PATHS = ("data.path", "init_from", "backbone.pretrained", "method.teacher")
# The packages whose modules `data.name`, `backbone.name` and `method.name` name, below `dml_jax`.
MODULES = {"data": "data.datasets", "backbone": "backbones", "method": "methods"}


def choices(kind: str) -> list[str]:
    """The names that `data.name`, `backbone.name` or `method.name` can have; `kind` is "data", "backbone", "method"."""
    root = Path(__file__).parent
    listing = root / "data" / "datasets" if kind == "data" else root / "options" / MODULES[kind]
    return sorted(path.stem for path in listing.glob("*.py") if path.stem not in ("__init__", "losses"))


def check_name(kind: str, name: Any, key: str = "") -> None:
    """Raises ConfigError, with the nearest name, if there is no data set, backbone or method of that name.

    Args:
      kind: "data", "backbone" or "method".
      name: of a module.
      key: for the message; by default the key of the configuration.
    """
    if name not in choices(kind):
        raise ConfigError(f"{key or f'{kind}.name'}={name!r}: there is none; {suggest(str(name), choices(kind))}")


def module(kind: str, name: Any, key: str = "") -> ModuleType:
    """Imports the module of a data set, backbone or method; see `check_name`."""
    check_name(kind, name, key)
    return importlib.import_module(f"dml_jax.{MODULES[kind]}.{name}")


def options_module(kind: str, name: Any) -> ModuleType:
    """Imports the options of a backbone or method."""
    check_name(kind, name)
    return importlib.import_module(f"dml_jax.options.{MODULES[kind]}.{name}")


def resolve(values: Mapping[str, Any]) -> Config:
    """Validates a whole configuration.

    Args:
      values: nested mapping, as `get_config()` of a config file returns it (`ConfigDict.to_dict()`).

    Raises:
      ConfigError: names the key, the value, the rule and the remedy.
    """
    flat = flatten(values)
    for key in PATHS:
        if isinstance(flat.get(key), str):
            utf8_path(key, flat[key])
    kinds: dict[str, Any] = {"data": Data, "train": Train, "evaluation": Evaluation}
    if values.get("head") is not None:
        kinds["head"] = Train
    for kind in ("backbone", "method"):
        given = values.get(kind)
        if not isinstance(given, Mapping) or "name" not in given:
            raise ConfigError(f"{kind}.name: missing; known: {', '.join(choices(kind))}")
        module = options_module(kind, given["name"])
        # A module whose options depend on one another, as those of a loss on its name, has a `resolve` of its own.
        kinds[kind] = getattr(module, "resolve", module.Config)
    known = list(known_keys(values))
    sections = dict(values)
    for key, kind in kinds.items():
        given = values.get(key, {})
        sections[key] = validate(kind, given, key, known) if isinstance(kind, type) else kind(given, key, known)
    for key in values:
        if key not in Config.__dataclass_fields__:
            raise ConfigError(f"{key}: there is no such key; {suggest(key, known)}")
    config = Config(**sections)
    if config.train.precision == "bfloat16":
        config = replace(config, backbone=replace(config.backbone, dtype="bfloat16"))
    check_name("data", config.data.name)
    _check_images_per_class(config)
    if config.train.layer_decay != 1 and config.backbone.name not in ("vit", "deit"):
        raise ConfigError(
            f"train.layer_decay={config.train.layer_decay}: is for the blocks of a vision transformer, but "
            f"backbone.name={config.backbone.name!r}; set it to 1"
        )
    if config.head and not (config.head.feature_views and not config.train.feature_views):
        raise ConfigError(
            "head.feature_views: must be positive, and train.feature_views 0: head trains on features first"
        )
    if config.data.training_size and config.backbone.name in ("vit", "deit"):
        raise ConfigError(
            f"data.training_size={config.data.training_size}: backbone.name={config.backbone.name!r} has positions for "
            "one size of images; set it to 0"
        )
    return config


def upgraded(values: Mapping[str, Any]) -> dict[str, Any]:
    """A stored configuration with the keys that it lacks because an earlier version has written it.

    That version trained "sgd" with Nesterov's momentum and "rmsprop" with momentum, both of 0.9.
    """
    train = values.get("train")
    if not isinstance(train, Mapping) or not USERS.keys().isdisjoint(train):
        return dict(values)
    then = {"sgd": {"momentum": 0.9, "nesterov": True}, "rmsprop": {"momentum": 0.9, "alpha": 0.9}}
    added = {key: getattr(Train, key) for key in USERS} | then.get(str(train.get("optimizer")), {})
    return {**values, "train": {**train, **added}}


def known_keys(values: Mapping[str, Any]) -> Iterator[str]:
    """All dotted keys that a configuration with the backbone and method of `values` can have."""
    kinds: dict[str, type] = {"data": Data, "train": Train, "head": Train, "evaluation": Evaluation}
    for kind in ("backbone", "method"):
        module = options_module(kind, values[kind]["name"])
        kinds[kind] = module.config_type(values[kind]) if hasattr(module, "config_type") else module.Config
    for key in keys(Config):
        yield from keys(kinds[key], key) if key in kinds else (key,)


def _check_images_per_class(config: Config) -> None:
    """Raises ConfigError if the sampler ignores a value that was set, and no test-time batches use it."""
    images = config.data.images_per_class
    if config.data.sampler in WITHOUT_CLASSES and images != Data.images_per_class and not config.evaluation.refine:
        raise ConfigError(
            f"data.images_per_class={images}: data.sampler={config.data.sampler!r} ignores it; remove it or choose "
            "another sampler"
        )


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mapping -> dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat


def decisive(values: Mapping[str, Any]) -> dict[str, Any]:
    """The keys, with values, that determine the trained model."""
    flat = flatten(values)
    # A configuration that was edited by hand may lack any key.
    chosen = set() if flat.get("train.select") == "last" else {"train.evaluate_every", "evaluation.protocol"}
    # With a sampler that does not draw by class, this is the size of test-time batches only.
    ignored = INDIFFERENT + (("data.images_per_class",) if flat.get("data.sampler") in WITHOUT_CLASSES else ())
    return {k: v for k, v in flat.items() if k in chosen or not any(k == i or k.startswith(f"{i}.") for i in ignored)}


def digest(config: Config) -> str:
    """SHA-256 of everything in the configuration that determines the trained model."""
    text = json.dumps(decisive(asdict(config)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
