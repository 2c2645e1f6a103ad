"""The options --rerank and --expand of `dml-jax evaluate`: definition, validation, and evaluation."""

import argparse
import sys
import time
from typing import Any

import numpy as np

from dml_jax.commands.cli import Parser
from dml_jax.console import Console
from dml_jax.errors import ConfigError
from dml_jax.evaluation import metrics, query_expansion, ranked_lists, reranking

NAMES = ("expanded", "reranked")  # keys of the results
LARGEST_K = 100  # of Recall@K after re-ranking, unless --ks is given: larger K need longer re-ranked lists
DEPENDING = {"rerank": ("k1", "k2", "weight"), "expand": ("expand_by", "alpha", "augment")}
Arrays = tuple[np.ndarray, np.ndarray, np.ndarray | None, np.ndarray | None]  # queries, labels, and of a gallery


def add_to(flags: Parser) -> None:
    """Adds the options to a command line."""
    flags.add_argument("--rerank", action="store_true", help="add k-reciprocal re-ranking (Zhong et al., CVPR 2017)")
    flags.add_argument("--k1", type=int, help="re-ranking: neighbourhood size (default: 20)")
    flags.add_argument("--k2", type=int, help="re-ranking: number of nearest encodings to average (default: 6)")
    flags.add_argument("--weight", type=float, help="re-ranking: weight of the original distance (default: 0.3)")
    flags.add_argument("--expand", choices=("aqe", "alpha"), help="add query expansion")
    flags.add_argument("--expand_by", type=int, help="expansion: neighbours added to each query (default: 10)")
    flags.add_argument("--alpha", type=float, help="expansion with --expand=alpha: exponent of the cosine (default: 3)")
    flags.add_argument("--augment", action="store_true", help="expansion: also expand the gallery (database-side)")


def check(options: argparse.Namespace) -> None:
    """Raises ConfigError for invalid values and combinations of options."""
    for parent, keys in DEPENDING.items():
        given = [key for key in keys if not any(getattr(options, key) is absent for absent in (None, False))]
        if given and not getattr(options, parent):
            raise ConfigError(f"--{given[0]}: needs --{parent}; give that too")
    if options.alpha is not None and options.expand != "alpha":
        raise ConfigError("--alpha: needs --expand=alpha; aqe uses equal weights")
    if (options.rerank or options.expand) and options.metric != "cosine":
        raise ConfigError(f"--metric={options.metric}: --rerank and --expand need --metric=cosine")
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


def check_sizes(options: argparse.Namespace, queries: int, gallery: int | None) -> None:
    """Raises ConfigError for neighbourhoods larger than the data; without a gallery the queries search each other."""
    if options.expand:
        candidates = queries - 1 if gallery is None else gallery - bool(options.augment)
        count = _expansion_size(options)
        if count > candidates:
            raise ConfigError(f"--expand_by={count}: there are {candidates} candidates; give at most that many")
    if options.rerank:
        k1, k2, _ = _reranking_parameters(options)
        total = queries + (gallery or 0)
        if k1 >= total:
            raise ConfigError(f"--k1={k1}: must be smaller than the {total} rows in total")
        if k2 > k1 + 1:
            raise ConfigError(f"--k2={k2}: must be at most k1 + 1 = {k1 + 1}")


def _expansion_size(options: argparse.Namespace) -> int:
    return query_expansion.K if options.expand_by is None else options.expand_by


def _reranking_parameters(options: argparse.Namespace) -> tuple[int, int, float]:
    """k1, k2 and the weight of the original distance."""
    return (
        reranking.K1 if options.k1 is None else options.k1,
        reranking.K2 if options.k2 is None else options.k2,
        reranking.WEIGHT if options.weight is None else options.weight,
    )


def evaluate(
    options: argparse.Namespace,
    queries: np.ndarray,
    labels: np.ndarray,
    gallery: np.ndarray | None,
    gallery_labels: np.ndarray | None,
    ks: tuple[int, ...],
    console: Console,
) -> dict[str, dict[str, Any]]:
    """Metrics of the requested rankings, by name, each with its `protocol` and `seconds`.

    Embeddings are [Q, D] and [G, D], labels int [Q] and [G]; without a gallery the queries search each other.
    """
    results: dict[str, dict[str, Any]] = {}
    for name, function, requested in (("expanded", _expanded, options.expand), ("reranked", _reranked, options.rerank)):
        if requested:
            started = time.monotonic()
            if not options.quiet:
                console.print(f"evaluating the {name} ranking")
            results[name] = function(options, (queries, labels, gallery, gallery_labels), ks)
            results[name]["seconds"] = round(time.monotonic() - started, 3)
    return results


def _expanded(options: argparse.Namespace, arrays: Arrays, ks: tuple[int, ...]) -> dict[str, Any]:
    queries, labels, gallery, gallery_labels = arrays
    exclude_self = gallery is None
    candidates = queries if gallery is None else gallery
    count = _expansion_size(options)
    alpha = 0.0 if options.expand == "aqe" else query_expansion.ALPHA if options.alpha is None else options.alpha
    if options.augment:
        candidates = query_expansion.expand(candidates, candidates, count, alpha=alpha, exclude_self=True)
    expanded = query_expansion.expand(queries, candidates, count, alpha=alpha, exclude_self=exclude_self)
    result = metrics.retrieval(
        expanded,
        labels,
        ks=tuple(k for k in ks if k <= len(candidates) - exclude_self),
        gallery=candidates,
        gallery_labels=labels if gallery is None else gallery_labels,
        exclude_self=exclude_self,
        exclusion="index" if options.protocol == "clean" else "position",
        lone_queries=options.lone_queries,
        memory=None if options.memory is None else options.memory << 20,
    )
    weights = "equal weights" if options.expand == "aqe" else f"weights cosine^{alpha:g}"
    result["protocol"] = (
        f"expanded: each query replaced by the normalised mean of itself and its {count} nearest gallery rows, "
        f"{weights}" + (", after expanding each gallery row in the same way" if options.augment else "")
        + "; otherwise as above"
    )  # fmt: skip
    return result


def _reranked(options: argparse.Namespace, arrays: Arrays, ks: tuple[int, ...]) -> dict[str, Any]:
    queries, labels, gallery, gallery_labels = arrays
    exclude_self = gallery is None
    if gallery is None or gallery_labels is None:
        gallery, gallery_labels = queries, labels
    k1, k2, weight = _reranking_parameters(options)
    dropped = int(exclude_self and options.protocol == "paper")  # first neighbours, as in the authors' code
    candidates = len(gallery) - exclude_self
    ks = tuple(k for k in ks if k <= candidates and (options.ks is not None or k <= LARGEST_K))
    depth = max(1, *ks, ranked_lists.required_depth(labels, gallery_labels, exclude_self=exclude_self))
    _, indices = reranking.search(
        queries, gallery, depth + dropped, k1=k1, k2=k2, weight=weight, exclude_self=exclude_self and not dropped
    )
    result: dict[str, Any] = ranked_lists.retrieval(
        indices[:, dropped:],
        labels,
        None if exclude_self else gallery_labels,
        ks=ks,
        lone_queries=options.lone_queries,
    )
    result["protocol"] = (
        f"reranked: by k-reciprocal neighbours among {'all rows' if exclude_self else 'queries and gallery together'}, "
        f"k1 {k1}, k2 {k2}, weight of the original distance {weight:g}; otherwise as above"
    )
    return result
