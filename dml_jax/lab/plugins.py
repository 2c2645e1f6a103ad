"""The kinds of plug-ins: how each is called, its configuration key, and how to recognise one."""

import inspect
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dml_jax.config import modules
from dml_jax.errors import ConfigError, suggest


class Kind(NamedTuple):
    """A kind of function."""

    key: str  # configuration key
    call: str  # arguments and result, as in the guide
    # Whether it has these parameters, given their names and the number without a default.
    known: Callable[[Sequence[str], int], bool]


# In the order in which a function is compared with them.
FUNCTIONS = {
    "loss": Kind(
        "method.loss",
        "(embeddings [N, D], labels [N], *, options) -> scalar",
        lambda names, needed: names[0] == "embeddings" or "labels" in names[1:],
    ),
    "sampler": Kind(
        "data.sampler",
        "(labels [N], batch_size, images_per_class, seed) -> Sampler",
        lambda names, needed: names[0] == "labels" and "seed" in names,
    ),
    "relation": Kind(
        "data.relation",
        "(names [N], names [M]) -> weights [N, M]",
        lambda names, needed: names[0] == "names" and needed == 2,
    ),
    "optimizer": Kind(
        "train.optimizer",
        "(weight_decay) -> optax.GradientTransformation",
        lambda names, needed: names[0] == "weight_decay",
    ),
    "metric": Kind(
        "evaluation.metrics", "(hits [G]) -> number", lambda names, needed: names[0] == "hits"
    ),
    "refine": Kind(
        "evaluation.refine",
        "(queries [Q, D], gallery [G, D] or None) -> [Q, D]",
        lambda names, needed: names[0] == "queries",
    ),
    "distance": Kind(
        "method.distance",
        "(a [N, D], b [M, D]) -> [N, M]",
        lambda names, needed: len(names) >= 2 == needed,
    ),
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
    parameters = inspect.signature(plugin).parameters.values()
    needed = sum(
        p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
        for p in parameters
    )
    names = [p.name for p in parameters]
    known = (name for name, kind in FUNCTIONS.items() if names and kind.known(names, needed))
    return next(known, None)


def find_plugins(path: str, kind: str | None = None) -> list[tuple[str, str]]:
    """(import path, kind) of a module or function, or of each plug-in function of a module.

    Raises ConfigError if there is none, unless `kind` is given.
    """
    parent, _, name = path.rpartition(".")
    if parent:
        modules.import_module("MODULE", path, parent)
    named = getattr(sys.modules.get(parent), name, None)
    if named is None and parent and not hasattr(sys.modules[parent], "__path__"):
        remedy = suggest(name, vars(sys.modules[parent]))
        raise ConfigError(f"{path}: {parent} has no {name}; {remedy}")
    functions = {path: named}
    if named is None or inspect.ismodule(named):
        modules.import_module("MODULE", path, path)
        module = sys.modules[path]
        if whole := kind or kind_of(module):
            return [(path, whole)]
        functions = {
            f"{path}.{key}": value
            for key, value in vars(module).items()
            if getattr(value, "__module__", None) == path and not key.startswith("_")
        }
    kinds = {key: kind or kind_of(f) for key, f in functions.items() if inspect.isfunction(f)}
    if not any(kinds.values()):
        calls = "; ".join(f"{name} {kind.call}" for name, kind in FUNCTIONS.items())
        raise ConfigError(
            f"{path}: is not a plug-in; a module defines build or load, or functions, which are "
            f"known by the names of their arguments ({calls}); give --kind"
        )
    return [(key, found) for key, found in kinds.items() if found]
