"""The kinds of plug-ins: how each is called, the configuration key that names it, and how it is
recognised."""

import inspect
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple


class Kind(NamedTuple):
    """A kind of function."""

    key: str  # of a configuration
    call: str  # its arguments and result, as in the guide
    known: Callable[
        [Sequence[str], int], bool
    ]  # by the names of its parameters, and the number without a default


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
        "method.relation",
        "(labels [N], labels [M]) -> (positive, negative) [N, M]",
        lambda names, needed: names[0] == "labels" and needed == 2,
    ),
    "optimizer": Kind(
        "train.optimizer",
        "(weight_decay) -> optax.GradientTransformation",
        lambda names, needed: names[0] == "weight_decay",
    ),
    "metric": Kind(
        "evaluation.metrics", "(hits [G]) -> number", lambda names, needed: names[0] == "hits"
    ),
    "step": Kind(
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
LISTS = ("evaluation.metrics", "evaluation.refine")  # keys that name several
MODULES = {
    "method": "method.name",
    "backbone": "backbone.name",
    "data": "data.name",
}  # whole modules, and their keys
KINDS = (*FUNCTIONS, *MODULES)


def kind_of(plugin: Any) -> str | None:
    """The kind of a module or function; None if it is no plug-in."""
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
    return next(
        (name for name, kind in FUNCTIONS.items() if names and kind.known(names, needed)), None
    )
