"""The kinds of plug-ins: their signatures, configuration keys, and how to recognise them."""

import inspect
import sys
from typing import Any, NamedTuple

from dml_jax.config import modules
from dml_jax.errors import ConfigError, suggest


class Kind(NamedTuple):
    """A kind of function: its first argument, its configuration key, arguments and result."""

    first: str
    key: str
    call: str


FUNCTIONS = {
    "loss": Kind(
        "embeddings", "method.loss", "(embeddings [N, D], labels [N], *, options) -> scalar"
    ),
    "sampler": Kind(
        "labels", "data.sampler", "(labels [N], batch_size, images_per_class, seed) -> Sampler"
    ),
    "relation": Kind("names", "data.relation", "(names [N], names [M]) -> weights [N, M]"),
    "schedule": Kind(
        "steps", "train.schedule", "(steps) -> (step -> factor of all learning rates)"
    ),
    "optimizer": Kind(
        "weight_decay", "train.optimizer", "(weight_decay) -> optax.GradientTransformation"
    ),
    "metric": Kind("hits", "evaluation.metrics", "(hits [G], *, grades [G]) -> number"),
    "refine": Kind(
        "queries", "evaluation.refine", "(queries [Q, D], gallery [G, D] or None) -> [Q, D]"
    ),
    "distance": Kind("a", "method.distance", "(a [N, D], b [M, D]) -> [N, M]"),
}
LISTS = ("evaluation.metrics", "evaluation.refine")  # keys that name several functions
MODULES = {"method": "method.name", "backbone": "backbone.name", "data": "data.name"}
KEYS = MODULES | {name: kind.key for name, kind in FUNCTIONS.items()}  # by kind


def kind_of(plugin: Any) -> str | None:
    """The kind of a module or function; None if it is not a plug-in."""
    if inspect.ismodule(plugin):
        if hasattr(plugin, "load") or hasattr(plugin, "RECIPE"):
            return "data"
        if not hasattr(plugin, "build"):
            return None
        return "backbone" if len(inspect.signature(plugin.build).parameters) == 1 else "method"
    parameters = inspect.signature(plugin).parameters
    required = [
        p for p in parameters.values() if p.default is p.empty and p.kind < p.VAR_POSITIONAL
    ]
    first = required[0].name if required else None
    if "embeddings" in parameters or "labels" in list(parameters)[1:]:
        return "loss"
    if first == "labels" and "seed" not in parameters:
        return None
    matches = (name for name, kind in FUNCTIONS.items() if kind.first == first)
    return next(matches, "distance" if len(required) == 2 else None)


def find_plugins(path: str, kind: str | None = None) -> list[tuple[str, str]]:
    """(import path, kind) of a module or function, or of each plug-in function of a module.

    Raises ConfigError if none is recognised, unless `kind` is given.
    """
    parent, _, name = path.rpartition(".")
    if parent:
        modules.import_module("MODULE", path, parent)
    plugin = getattr(sys.modules.get(parent), name, None)
    if plugin is None and parent and not hasattr(sys.modules[parent], "__path__"):
        remedy = suggest(name, vars(sys.modules[parent]))
        raise ConfigError(f"{path}: {parent} does not define {name}; {remedy}")
    functions = {path: plugin}
    if plugin is None or inspect.ismodule(plugin):
        modules.import_module("MODULE", path, path)
        if module_kind := kind or kind_of(sys.modules[path]):
            return [(path, module_kind)]
        public = {key: f for key, f in vars(sys.modules[path]).items() if not key.startswith("_")}
        defined_here = {key for key, f in public.items() if getattr(f, "__module__", None) == path}
        functions = {f"{path}.{key}": public[key] for key in public if key in defined_here}
    kinds = {key: kind or kind_of(f) for key, f in functions.items() if inspect.isfunction(f)}
    if not any(kinds.values()):
        calls = "; ".join(f"{name} {kind.call}" for name, kind in FUNCTIONS.items())
        expected = (
            f"a module must define build or load, or functions with these signatures: {calls}"
        )
        raise ConfigError(f"{path}: is not recognised as a plug-in; give --kind; {expected}")
    return [(key, function_kind) for key, function_kind in kinds.items() if function_kind]
