"""Interleaved timing of two calls, so that a drift of the machine's speed favours neither."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

Row = dict[str, Any]


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call."""
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def row(case: str, ours: Callable[[], object], theirs: Callable[[], object] | None, repeats: int = 30) -> Row:
    """Times both calls alternately, after two warm-up calls of each.

    Args:
      case: description of the calls.
      ours, theirs: the calls; `theirs` is None if the peer is not installed.
      repeats: number of timed calls of each.

    Returns:
      "case", "ours_ms" and "theirs_ms" (medians), "ratio" (median of the pairwise ratios theirs / ours).
    """
    for _ in range(2):
        ours()
        if theirs:
            theirs()
    pairs = [(seconds(ours), seconds(theirs) if theirs else np.nan) for _ in range(repeats)]
    a, b = np.asarray(pairs).T * 1e3
    peer, ratio = (float(np.median(b)), float(np.median(b / a))) if theirs else (None, None)
    return {"case": case, "ours_ms": float(np.median(a)), "theirs_ms": peer, "ratio": ratio}


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = ["| case | dml_jax, ms | peer, ms | times faster |", "|---|---|---|---|"]
    for each in rows:
        other, ratio = each["theirs_ms"], each["ratio"]
        peer = "– | –" if other is None else f"{other:.1f} | {ratio:.2f}"
        lines.append(f"| {each['case']} | {each['ours_ms']:.1f} | {peer} |")
    return "\n".join(lines)


def installed(make: Callable[..., Callable[[], Any]], *arguments: Any) -> Callable[[], Any] | None:
    """The peer's call, or None if the peer is not installed."""
    try:
        return make(*arguments)
    except ImportError:
        return None
