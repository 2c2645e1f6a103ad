"""Which keys of a configuration tell one run, or one experiment, from another."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from dml_jax.config.data import WITHOUT_CLASSES
from dml_jax.config.fields import flatten
from dml_jax.config.resolve import Config

# Keys that change no bit of the trained model, so that a run may be resumed with other values. (If the best model is
# selected, when and how it is evaluated does matter, see `decisive`.)
INDIFFERENT = (
    "data.path", "data.threads", "data.workers", "train.steps", "train.epochs", "train.log_every",
    "train.evaluate_every", "train.checkpoint_every", "train.keep_every", "evaluation", "method.k", "method.k_r",
    "paper", "method.ensemble", "method.tested_branch",
)  # fmt: skip
# Options of the test-time reading, which decide which model is selected but change none.
READING = (
    "method.ensemble", "method.tested_branch", "evaluation.readings", "evaluation.reading", "evaluation.flip",
    "evaluation.scales",
)  # fmt: skip
# Keys that do not change what a published number was measured with.
SAME_EXPERIMENT = (
    "seed", "data.path", "data.threads", "data.workers", "train.log_every", "train.checkpoint_every",
    "train.keep_every", "evaluation.ks", "evaluation.prefixes", "evaluation.full_ranking", "evaluation.batch_size",
    "evaluation.refine", "evaluation.refine_clusters", "evaluation.refine_eps", "evaluation.refine_min_samples",
    "evaluation.controls", "evaluation.readings", "evaluation.reading", "method.ensemble", "backbone.pretrained",
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
