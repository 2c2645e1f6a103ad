"""Interleaved timing of two calls, so that a drift of the machine's speed favours neither.

The threads of some libraries (OpenBLAS, OpenMP) wait in busy loops for more work, and slow down
whatever runs next. Directly after a product in NumPy, one in JAX takes 1.4 times as long. So each
timed call has some rest before it.
"""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

Row = dict[str, Any]

REST = 0.1  # seconds; OpenBLAS waits for 2^26 cycles


def seconds(call: Callable[[], object]) -> float:
    """Wall time of one call, after some rest and an untimed call that wakes its threads."""
    time.sleep(REST)
    call()
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def row(
    case: str, ours: Callable[[], object], theirs: Callable[[], object] | None, repeats: int = 30
) -> Row:
    """Times both calls alternately, after two warm-up calls of each.

    Args:
      case: description of the calls.
      ours, theirs: the calls; `theirs` is None if the peer is not installed.
      repeats: number of timed calls of each.

    Returns:
      see `summary`.
    """
    for _ in range(2):
        ours()
        if theirs:
            theirs()
    pairs = [(seconds(ours), seconds(theirs) if theirs else np.nan) for _ in range(repeats)]
    return summary(case, *np.asarray(pairs).T)


def summary(case: str, ours: np.ndarray, theirs: np.ndarray) -> Row:
    """Pairs of measured seconds as a row.

    Returns:
      "case", "ours_ms" and "theirs_ms" (medians), "ratio" (median of the pairwise ratios theirs /
      ours) and "quartiles" (the first and the third of these ratios); without a peer (not a
      number), the last three are None.
    """
    found: Row = {"case": case, "ours_ms": 1e3 * float(np.median(ours))}
    if np.isnan(theirs).any():
        return {**found, "theirs_ms": None, "ratio": None, "quartiles": None}
    low, middle, high = np.quantile(theirs / ours, [0.25, 0.5, 0.75]).tolist()
    return {
        **found,
        "theirs_ms": 1e3 * float(np.median(theirs)),
        "ratio": middle,
        "quartiles": [low, high],
    }


def table(rows: list[Row]) -> str:
    """The rows as a Markdown table."""
    lines = [
        "| case | dml_jax, ms | peer, ms | times faster | quartiles |",
        "|---|---|---|---|---|",
    ]
    for each in rows:
        peer = "– | – | –"
        if each["ratio"] is not None:
            low, high = each["quartiles"]
            peer = f"{each['theirs_ms']:.1f} | {each['ratio']:.2f} | {low:.2f}–{high:.2f}"
        lines.append(f"| {each['case']} | {each['ours_ms']:.1f} | {peer} |")
    return "\n".join(lines)


def installed(make: Callable[..., Callable[[], Any]], *arguments: Any) -> Callable[[], Any] | None:
    """The peer's call, or None if the peer is not installed."""
    try:
        return make(*arguments)
    except ImportError:
        return None
