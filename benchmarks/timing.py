"""Two calls in turn, so that a machine whose speed drifts favours neither."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np


def seconds(call: Callable[[], Any]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def row(case: str, ours: Callable[[], Any], theirs: Callable[[], Any] | None, repeats: int = 30) -> dict[str, Any]:
    """Times both calls A B A B …, after two calls each to warm up.

    Args:
      case: what is done.
      ours, theirs: the calls; `theirs` is None where the peer is not installed.
      repeats: counted calls of each.

    Returns:
      "case", "ours_ms" and "theirs_ms" (medians), "ratio" (median of theirs / ours pair by pair).
    """
    for _ in range(2):
        ours()
        if theirs:
            theirs()
    pairs = [(seconds(ours), seconds(theirs) if theirs else np.nan) for _ in range(repeats)]
    a, b = np.asarray(pairs).T * 1e3
    found = (float(np.median(b)), float(np.median(b / a))) if theirs else (None, None)
    return {"case": case, "ours_ms": float(np.median(a)), "theirs_ms": found[0], "ratio": found[1]}


def table(rows: list[dict[str, Any]]) -> str:
    """The rows as a Markdown table."""
    lines = ["| case | dml_jax, ms | peer, ms | times faster |", "|---|---|---|---|"]
    for each in rows:
        other, ratio = each["theirs_ms"], each["ratio"]
        peer = "– | –" if other is None else f"{other:.1f} | {ratio:.2f}"
        lines.append(f"| {each['case']} | {each['ours_ms']:.1f} | {peer} |")
    return "\n".join(lines)


def installed(make: Callable[..., Callable[[], Any]], *arguments: Any) -> Callable[[], Any] | None:
    """The peer's call, or None where it is not installed."""
    try:
        return make(*arguments)
    except ImportError:
        return None
