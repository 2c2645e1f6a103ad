"""The configuration of a run after validation, and the options that tell one run from another.

The sections `backbone` and `method` have a key `name`, which is the name of a module, and the options of its `Config`.
"""

import hashlib
import json
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import asdict, field, fields, replace
from functools import cache
from typing import Annotated, Any

from annotated_types import Ge, Lt

from dml_jax.config import fields as rules
from dml_jax.config.fields import Values, flatten, require, section, validate, with_precision
from dml_jax.config.modules import module
from dml_jax.config.sections import WITHOUT_CLASSES, Data, Evaluation, Train
from dml_jax.errors import ConfigError
from dml_jax.files import BUCKETS, expand_path

PATHS = ("data.path", "init_from", "backbone.pretrained", "method.teacher")  # keys that hold a path


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

    def __post_init__(self) -> None:
        views = self.head.feature_views if self.head else 1
        rule = "must be positive, and train.feature_views 0: head trains on features first"
        require(self.head is None or bool(views and not self.train.feature_views), "head.feature_views", views, rule)


def published(values: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """The published results shown beside a run of this configuration, by source and metric."""
    protocol = "paper" if values.get("train", {}).get("select") == "test" else "clean"
    return values["paper"].get(protocol, {})


def resolve(values: Values, typed: Collection[str] = (), warn: Callable[[str], None] | None = None) -> Config:
    """Validates a whole configuration; options without effect take their defaults.

    Args:
      values: nested, as `get_config()` of a configuration file returns them.
      typed: dotted keys that the command line sets. An option without effect among them is an error.
      warn: called with one sentence for each of the others.
    """
    config, problems = rules.settled(_validated(values))
    trained = config.backbone.pretrained != "none" or config.init_from
    if getattr(config.backbone, "freeze_bn", False) and not trained:
        key = "backbone.freeze_bn"
        problem = "the running statistics of a network without pretrained weights do not normalise"
        remedy = "set it to false, or give backbone.pretrained or init_from"
        problems.append((key, f"{key}=True: {problem}; {remedy}"))
    if config.method.name == "group_loss" and config.data.sampler not in WITHOUT_CLASSES:
        anchors, images = config.method.anchors, config.data.images_per_class
        if anchors >= images:
            problem = f"method.anchors={anchors}: leaves only the cross-entropy, because all images are anchors"
            problems.append(("method.anchors", f"{problem}; set it below data.images_per_class={images}"))
    for key, text in problems:
        if key in typed:
            raise ConfigError(text)
        if warn is not None:
            warn(text)
    if config.train.precision == "bfloat16" and "backbone.dtype" in typed and config.backbone.dtype != "bfloat16":
        raise ConfigError(
            f"backbone.dtype={config.backbone.dtype!r}: train.precision='bfloat16' sets it too; remove one of them"
        )
    return settled(config)


def settled(config: Config) -> Config:
    """A configuration that was made from another one: options without effect take their defaults."""
    config, _ = rules.settled(config)
    if config.train.precision == "bfloat16":
        config = replace(config, backbone=with_precision(config.backbone, "bfloat16"))
    return config


def _validated(values: Values) -> Config:
    flat = flatten(values)
    for key in PATHS:
        if isinstance(flat.get(key), str) and not (key == "data.path" and flat[key].startswith(BUCKETS)):
            expand_path(key, flat[key])
    kinds = {}
    for kind in ("backbone", "method"):
        found = module(kind, flat.get(f"{kind}.name"))
        # The options of a baseline depend on its loss.
        kinds[kind] = found.config_type(values[kind]) if hasattr(found, "config_type") else found.Config
    made = validate(_with_types(**kinds), values)
    if "." not in made.data.name:  # a model can be used without the code of its data set
        module("data", made.data.name)
    return Config(**{option.name: getattr(made, option.name) for option in fields(Config)})


@cache
def _with_types(backbone: type, method: type) -> type[Config]:
    return section(type("Config", (Config,), {"__annotations__": {"backbone": backbone, "method": method}}))


# Options that may differ when a run is resumed: they do not change the trained model. (If the best model is selected,
# the time and kind of the evaluation do matter: `decisive` adds them.)
INDIFFERENT = (
    "data.path", "data.threads", "train.steps", "train.epochs", "train.log_every",
    "train.evaluate_every", "train.checkpoint_every", "train.keep_every", "evaluation", "method.k", "method.k_r",
    "paper", "method.ensemble", "method.tested_branch",
)  # fmt: skip
# Options of the test-time embedding, which change the selection of a model but no model.
READING = ("method.ensemble", "method.tested_branch", "evaluation.readings", "evaluation.reading")
# Options that may differ from the experiment of a published number.
SAME_EXPERIMENT = (
    "seed", "data.path", "data.threads", "train.log_every", "train.checkpoint_every",
    "train.keep_every", "evaluation.ks", "evaluation.full_ranking", "evaluation.batch_size",
    "evaluation.metrics", "evaluation.refine", "evaluation.refine_clusters", "evaluation.refine_eps",
    "evaluation.refine_min_samples", "evaluation.controls", "evaluation.readings", "evaluation.reading",
    "method.ensemble", "backbone.pretrained",
)  # fmt: skip


def within(key: str, sections: Iterable[str]) -> bool:
    """Whether a dotted key is one of the given keys, or in one of them."""
    return any(key == section or key.startswith(f"{section}.") for section in sections)


def decisive(values: Mapping[str, Any], *, selecting: bool = True) -> dict[str, Any]:
    """The keys, with values, that determine the trained model; unless `selecting`, of models that exist already."""
    flat = flatten(values)
    # A configuration that was edited by hand may lack any key.
    chosen = ("train.evaluate_every", "evaluation.protocol", *(READING if selecting else ()))
    if flat.get("train.select") == "last":
        chosen = ()
    # With a sampler that does not draw by class, this is the size of test-time batches only.
    ignored = INDIFFERENT + (("data.images_per_class",) if flat.get("data.sampler") in WITHOUT_CLASSES else ())
    return {key: value for key, value in flat.items() if within(key, chosen) or not within(key, ignored)}


def digest(config: Config) -> str:
    """SHA-256 of everything in the configuration that determines the trained model."""
    text = json.dumps(decisive(asdict(config)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
