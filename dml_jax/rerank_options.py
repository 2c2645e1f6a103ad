"""What `python -m dml_jax.evaluate` does beyond the plain ranking: re-ranking and query expansion."""

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from dml_jax.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np

    from dml_jax.console import Console


NAMES = ("expanded", "reranked")
LISTED = 100  # largest K of Recall@K that re-ranked lists are made for unless --ks asks for more
NEEDS = {
    "k1": "rerank",
    "k2": "rerank",
    "weight": "rerank",
    "expand_by": "expand",
    "alpha": "expand",
    "augment": "expand",
}


def check(options: argparse.Namespace) -> None:
    """Raises ConfigError for options that do not fit together or cannot be."""
    for key, parent in NEEDS.items():
        value = getattr(options, key)
        if value is not None and value is not False and not getattr(options, parent):
            raise ConfigError(f"--{key}: says how --{parent} works; give that too")
    if options.expand not in (None, "aqe", "alpha"):
        raise ConfigError(f"--expand={options.expand}: must be aqe or alpha")
    if options.alpha is not None and options.expand != "alpha":
        raise ConfigError("--alpha: is of --expand=alpha; aqe weighs all rows alike")
    if (options.rerank or options.expand) and options.metric != "cosine":
        raise ConfigError(f"--metric={options.metric}: --rerank and --expand know the cosine only")
    for key, least, most in (
        ("k1", 1, None),
        ("k2", 1, None),
        ("weight", 0, 1),
        ("expand_by", 1, None),
        ("alpha", 0, None),
    ):
        value = getattr(options, key)
        if value is not None and not least <= value <= (sys.float_info.max if most is None else most):
            raise ConfigError(f"--{key}={value}: must be {f'in {least}..{most}' if most else f'at least {least}'}")


def fit(options: argparse.Namespace, queries: int, gallery: int | None) -> None:
    """Raises ConfigError for sizes that the rows do not allow; `gallery` None where the queries search each other."""
    if options.expand:
        candidates = queries - 1 if gallery is None else gallery - bool(options.augment)
        count = expansion_size(options)
        if count > candidates:
            raise ConfigError(f"--expand_by={count}: there are {candidates} candidates; give fewer")
    if options.rerank:
        k1, k2, _ = reranking_sizes(options)
        total = queries + (gallery or 0)
        if k1 >= total:
            raise ConfigError(f"--k1={k1}: there are {total} rows in all; it must be below that")
        if k2 > k1 + 1:
            raise ConfigError(f"--k2={k2}: must be at most k1 + 1 = {k1 + 1}")


def expansion_size(options: argparse.Namespace) -> int:
    """How many rows are added to a query."""
    from dml_jax.evaluation import query_expansion

    return query_expansion.K if options.expand_by is None else options.expand_by


def reranking_sizes(options: argparse.Namespace) -> tuple[int, int, float]:
    """k1, k2 and the weight of the plain distance."""
    from dml_jax.evaluation import reranking

    return (
        reranking.K1 if options.k1 is None else options.k1,
        reranking.K2 if options.k2 is None else options.k2,
        reranking.WEIGHT if options.weight is None else options.weight,
    )


def evaluated(
    options: argparse.Namespace,
    points: "np.ndarray",
    labels: "np.ndarray",
    gallery: "np.ndarray | None",
    gallery_labels: "np.ndarray | None",
    ks: tuple[int, ...],
    console: "Console",
) -> dict[str, dict[str, Any]]:
    """The metrics of the refined rankings that the options ask for, by name; each names its `protocol` and `seconds`.

    Args:
      options: of the command.
      points: [Q, D]; labels: int [Q].
      gallery: [G, D] and gallery_labels: int [G]; None where the queries search each other.
      ks: of Recall@K.
      screen: told what is begun.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, body, asked in (("expanded", _expanded, options.expand), ("reranked", _reranked, options.rerank)):
        if asked:
            started = time.monotonic()
            if not options.quiet:
                console.say(f"judging the {name} ranking")
            found[name] = body(options, points, labels, gallery, gallery_labels, ks)
            found[name]["seconds"] = round(time.monotonic() - started, 3)
    return found


def _expanded(
    options: argparse.Namespace, points: Any, labels: Any, gallery: Any, gallery_labels: Any, ks: tuple[int, ...]
) -> dict[str, Any]:
    from dml_jax.evaluation import metrics, query_expansion

    own = gallery is None
    others = points if own else gallery
    count = expansion_size(options)
    alpha = 0.0 if options.expand == "aqe" else query_expansion.ALPHA if options.alpha is None else options.alpha
    if options.augment:
        others = query_expansion.expand(others, others, count, alpha=alpha, exclude_self=True)
    queries = query_expansion.expand(points, others, count, alpha=alpha, exclude_self=own)
    result = metrics.retrieval(
        queries,
        labels,
        ks=tuple(k for k in ks if k <= len(others) - own),
        gallery=others,
        gallery_labels=labels if own else gallery_labels,
        exclude_self=own,
        exclusion="index" if options.protocol == "clean" else "position",
        memory=None if options.memory is None else options.memory << 20,
    )
    weights = "equal weights" if options.expand == "aqe" else f"weights cosine^{alpha:g}"
    result["protocol"] = (
        f"expanded: each query the unit mean of itself and its {count} nearest rows of the gallery, {weights}"
        + (", after the same was done to each row of the gallery" if options.augment else "")
        + "; otherwise as above"
    )
    return result


def _reranked(
    options: argparse.Namespace, points: Any, labels: Any, gallery: Any, gallery_labels: Any, ks: tuple[int, ...]
) -> dict[str, Any]:
    from dml_jax.evaluation import ranked_lists, reranking

    own = gallery is None
    others, classes = (points, labels) if own else (gallery, gallery_labels)
    k1, k2, weight = reranking_sizes(options)
    first = int(own and options.protocol == "paper")  # neighbours passed over, as the authors' codes do
    candidates = len(others) - own
    wanted = tuple(k for k in ks if k <= candidates and (options.ks is not None or k <= LISTED))
    depth = max(1, *wanted, ranked_lists.depth(labels, classes, own=own))
    indices = reranking.search(
        points, others, depth + first, k1=k1, k2=k2, weight=weight, exclude_self=own and not first
    )[1]
    result: dict[str, Any] = ranked_lists.retrieval(indices[:, first:], labels, None if own else classes, ks=wanted)
    result["protocol"] = (
        f"reranked: by shared k-reciprocal neighbours among {'all rows' if own else 'queries and gallery together'}, "
        f"k1 {k1}, k2 {k2}, weight of the plain distance {weight:g}; otherwise as above"
    )
    return result
