"""The configuration of a run, as a file in `configs/` gives it, after validation.

The sections `backbone` and `method` have a key `name`, which is the name of a module, and the fields of that module's
`Config`.
"""

import hashlib
import importlib
import json
import pkgutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from dml_jax.config_schema import require, suggest, validate
from dml_jax.errors import ConfigError
from dml_jax.files import expand_path


@dataclass(frozen=True)
class Data:
    """Which images are used, and how they become batches."""

    name: str = "digits"  # a module of dml_jax/data/datasets
    path: str = ""  # of the prepared data set or of a folder of images; empty for built-in data sets
    sampler: Literal["balanced", "shuffled", "mpn", "mpn_redraw", "hist_balanced", "diva", "ms"] = "balanced"
    batch_size: int = 64  # images per step, over all devices
    images_per_class: int = 4  # in a batch; "shuffled" and "mpn_redraw" ignore it, test-time batches do not
    crop: Literal["none", "random_resized", "random", "centre"] = "none"  # in training; evaluation crops the centre
    image_size: int = 0  # side of the crop in pixels
    resize: int = 0  # shorter side in pixels before "random", "centre" and the crop of the evaluation
    resize_first: bool = False  # also before "random_resized"
    crop_scale: tuple[float, float] = (0.08, 1.0)  # fraction of the area that "random_resized" crops
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)  # its width / height
    flip: float = 0.0  # probability of a horizontal flip; this and the following apply to training only
    jitter: float = 0.0  # largest relative change of brightness, contrast and saturation
    greyscale: float = 0.0  # probability of conversion to greyscale
    erasing: float = 0.0  # probability that a random box is erased, after normalisation (MPN)
    validation_share: float = 0.0  # fraction of the training classes held out for validation
    threads: int = 2  # that read batches ahead
    workers: int = 0  # processes that read batches instead of threads; 0: none
    prefetch: int = 4  # batches read ahead

    def __post_init__(self) -> None:
        require(self.batch_size > 1, "data.batch_size", self.batch_size, "must be at least 2")
        require(self.images_per_class > 0, "data.images_per_class", self.images_per_class, "must be positive")
        require(
            self.sampler in ("shuffled", "mpn_redraw") or self.batch_size % self.images_per_class == 0,
            "data.images_per_class",
            self.images_per_class,
            f"must divide data.batch_size={self.batch_size}",
        )
        require(
            self.sampler in ("shuffled", "mpn_redraw") or self.batch_size > self.images_per_class,
            "data.batch_size",
            self.batch_size,
            f"a batch would hold one class only (data.images_per_class={self.images_per_class}); losses need two or more",
        )
        if self.crop != "none":
            require(
                self.image_size > 0,
                "data.image_size",
                self.image_size,
                f"data.crop={self.crop!r} needs a size",
            )
            require(
                self.resize >= self.image_size,
                "data.resize",
                self.resize,
                f"must be at least data.image_size={self.image_size}",
            )
        for key in ("crop_scale", "crop_ratio"):
            low, high = getattr(self, key)
            require(0 < low <= high, f"data.{key}", (low, high), "must be positive and increasing")
        require(self.crop_scale[1] <= 1, "data.crop_scale", self.crop_scale, "must not exceed 1")
        for key in ("flip", "greyscale", "erasing"):
            require(0 <= getattr(self, key) <= 1, f"data.{key}", getattr(self, key), "must be a probability")
        require(0 <= self.jitter < 1, "data.jitter", self.jitter, "must be in [0, 1)")
        require(
            0 <= self.validation_share < 1,
            "data.validation_share",
            self.validation_share,
            "must be in [0, 1)",
        )
        require(self.threads > 0, "data.threads", self.threads, "must be positive")
        require(self.workers >= 0, "data.workers", self.workers, "must not be negative")
        require(self.prefetch > 0, "data.prefetch", self.prefetch, "must be positive")


@dataclass(frozen=True)
class Group:
    """How one parameter group is trained."""

    learning_rate: float
    weight_decay: float = 0.0
    warmup: Literal["train", "freeze"] = "train"  # whether the group is trained in the warm-up epochs
    freeze: bool = False  # never trained

    def __post_init__(self) -> None:
        require(self.learning_rate >= 0, "learning_rate", self.learning_rate, "must not be negative")
        require(self.weight_decay >= 0, "weight_decay", self.weight_decay, "must not be negative")


Optimizer = Literal["adam", "adamw", "radam", "sgd", "rmsprop"]


@dataclass(frozen=True)
class Train:
    """Length, optimizer and schedule of the training."""

    groups: dict[str, Group]  # by name; the method determines the names
    steps: int = 0  # length in steps
    epochs: int = 0  # or length in epochs, counted as in the method's paper
    warmup_epochs: int = 0  # before these epochs, at the full learning rate
    optimizer: Optimizer = "adam"
    schedule: Literal["constant", "cosine", "step"] = "constant"
    milestones: tuple[int, ...] = ()  # epochs after which "step" multiplies by gamma, not counting the warm-up
    gamma: float = 0.1
    log_every: int = 20  # steps between two lines of metrics.jsonl
    evaluate_every: int = 0  # steps between two evaluations; 0: after each epoch if the length is in epochs
    checkpoint_every: int = 200  # steps between two checkpoints
    select: Literal["last", "validation", "test"] = "last"  # how the reported model is selected
    reload_best_epochs: tuple[int, ...] = ()  # epochs, not counting the warm-up, that continue from the best model so far

    def __post_init__(self) -> None:
        require(
            (self.steps > 0) != (self.epochs > 0),
            "train.steps",
            self.steps,
            f"give a positive train.steps or a positive train.epochs (={self.epochs}), not both",
        )
        require(self.warmup_epochs >= 0, "train.warmup_epochs", self.warmup_epochs, "must not be negative")
        require(0 < self.gamma <= 1, "train.gamma", self.gamma, "must be in (0, 1]")
        require(self.log_every > 0, "train.log_every", self.log_every, "must be positive")
        require(self.evaluate_every >= 0, "train.evaluate_every", self.evaluate_every, "must not be negative")
        require(self.checkpoint_every > 0, "train.checkpoint_every", self.checkpoint_every, "must be positive")
        require(
            list(self.milestones) == sorted(set(self.milestones)) and all(m >= 0 for m in self.milestones),
            "train.milestones",
            self.milestones,
            "must be increasing and not negative",
        )
        require(
            not self.reload_best_epochs or self.select != "last",
            "train.reload_best_epochs",
            self.reload_best_epochs,
            "needs a best model; set train.select to validation or test",
        )


# Batches for test-time refinement: the method's own, chunks of nearest neighbours, or drawn from clusters.
Refine = Literal["reciprocal", "neighbors", "kmeans", "ward", "spectral", "birch", "dbscan", "optics"]


@dataclass(frozen=True)
class Evaluation:
    """How embeddings are evaluated."""

    protocol: Literal["clean", "paper"] = "clean"  # excludes the query by its index, or the first neighbour like the authors' code
    ks: tuple[int, ...] = (1, 2, 4, 8)  # of Recall@K
    batch_size: int = 256  # images embedded at once
    cluster: bool = True  # computes NMI with k-means at the end; slow with many thousand classes
    refine: tuple[Refine, ...] = ()  # also evaluates the method's test-time refinement in these batches (MPN)
    refine_clusters: int = 900  # number of clusters for "kmeans", "ward", "spectral" and "birch"
    refine_eps: float = 0.9  # largest distance of neighbours for "dbscan" and "optics", between unit embeddings
    refine_min_samples: int = 5  # neighbours of a core point for the same two
    controls: bool = False  # also evaluates raw pixels and the untrained network; for small images

    def __post_init__(self) -> None:
        require(len(self.ks) > 0 and min(self.ks) > 0, "evaluation.ks", self.ks, "must be positive numbers")
        require(self.batch_size > 0, "evaluation.batch_size", self.batch_size, "must be positive")
        require(len(set(self.refine)) == len(self.refine), "evaluation.refine", self.refine, "names one kind twice")
        require(self.refine_clusters > 1, "evaluation.refine_clusters", self.refine_clusters, "must be at least 2")
        require(self.refine_eps > 0, "evaluation.refine_eps", self.refine_eps, "must be positive")
        require(
            self.refine_min_samples > 1, "evaluation.refine_min_samples", self.refine_min_samples, "must be at least 2"
        )


@dataclass(frozen=True)
class Config:
    """One experiment; `backbone` and `method` are the `Config` of the module that their `name` names."""

    name: str
    data: Data
    backbone: Any
    method: Any
    train: Train
    evaluation: Evaluation = field(default_factory=Evaluation)
    paper: dict[str, float] = field(default_factory=dict)  # the paper's numbers, as fractions, for the result table
    seed: int = 0
    init_from: str = ""  # work directory or directory of converted weights to start from

    def __post_init__(self) -> None:
        require(0 <= self.seed < 2**31, "seed", self.seed, "must be at least 0 and below 2147483648")


# Keys that change no bit of the trained model, so that a run may be resumed with other values. (If the best model is
# selected, when and how it is evaluated does matter, see `decisive`.)
INDIFFERENT = (
    "data.path", "data.threads", "data.workers", "data.prefetch", "train.steps", "train.epochs", "train.log_every",
    "train.evaluate_every", "train.checkpoint_every", "evaluation", "paper",
)  # fmt: skip
# Keys that hold a path.
PATHS = ("data.path", "init_from", "backbone.pretrained", "method.teacher")


# Modules of `backbones/` and `methods/` that a configuration cannot name: what the others share.
SHARED = ("as_backbone", "contract", "functional", "heads", "initializers", "layers", "momentum_queue", "pixels", "weights")


def choices(package: str) -> list[str]:
    """Names of the modules in `dml_jax.<package>` that a configuration can choose from."""
    found = importlib.import_module(f"dml_jax.{package}").__path__
    return sorted(module.name for module in pkgutil.iter_modules(found) if module.name not in SHARED)


def module(package: str, name: Any, key: str) -> Any:
    """Imports `dml_jax.<package>.<name>`; a ConfigError suggests the nearest name."""
    if name not in choices(package):
        raise ConfigError(f"{key}={name!r}: there is none; {suggest(str(name), choices(package))}")
    return importlib.import_module(f"dml_jax.{package}.{name}")


def resolve(values: Mapping[str, Any]) -> Config:
    """Validates a whole configuration.

    Args:
      values: nested mapping, as `get_config()` of a config file returns it (`ConfigDict.to_dict()`).

    Raises:
      ConfigError: names the key, the value, the rule and the remedy.
    """
    values = dict(values)
    for kind, package in (("backbone", "backbones"), ("method", "methods")):
        section = values.get(kind)
        if not isinstance(section, Mapping) or "name" not in section:
            raise ConfigError(f"{kind}.name: missing; known: {', '.join(choices(package))}")
        chosen = module(package, section["name"], f"{kind}.name")
        # A module whose options depend on one another, as those of a loss on its name, has a `resolve` of its own.
        values[kind] = chosen.resolve(section, kind) if hasattr(chosen, "resolve") else validate(chosen.Config, section, kind)
    config = validate(Config, values)
    module("data.datasets", config.data.name, "data.name")
    flat = flatten(asdict(config))
    for key in PATHS:
        expand_path(key, flat.get(key, ""))
    return config


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
    chosen = set() if flat["train.select"] == "last" else {"train.evaluate_every", "evaluation.protocol"}
    return {
        k: v for k, v in flat.items() if k in chosen or not any(k == i or k.startswith(f"{i}.") for i in INDIFFERENT)
    }


def digest(config: Config) -> str:
    """SHA-256 of everything in the configuration that determines the trained model."""
    text = json.dumps(decisive(asdict(config)), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
