"""Options of the commands that classify images with an index of enrolled classes."""

import argparse
from typing import Any

from dml_jax.evaluation import open_set
from dml_jax.evaluation.open_set import FALSE_ACCEPT_RATE, RULES


def add(flags: argparse.ArgumentParser) -> None:
    """Adds --decide, --false_accept_rate and --threshold."""
    flags.add_argument(
        "--decide",
        choices=RULES,
        help="by the cosine to the nearest image, or the margin of the best class over all others, some that are not "
        "enrolled among them (default; with --threshold: nearest)",
    )
    limit = flags.add_mutually_exclusive_group()
    limit.add_argument(
        "--false_accept_rate",
        type=float,
        default=FALSE_ACCEPT_RATE,
        help=f"fraction of strangers that may be given a class (default: {FALSE_ACCEPT_RATE})",
    )
    limit.add_argument("--threshold", type=float, help="cosine below which an image is unknown")


def given(options: argparse.Namespace) -> dict[str, Any]:
    """The options as arguments for `Index.classify`; raises DataError if one is out of range."""
    open_set.check(options.decide or RULES[0], options.false_accept_rate, options.threshold)
    return {name: getattr(options, name) for name in ("decide", "false_accept_rate", "threshold")}
