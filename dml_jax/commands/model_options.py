"""The options of the commands that use a model: --model, --checkpoint, --trust_code, --flip and --scales."""

import argparse
from typing import Any

from dml_jax.commands import cli

KINDS = "the work directory of a run, a directory of converted weights, or lite0"


def add(flags: argparse.ArgumentParser) -> None:
    """Adds the options; --workdir is another spelling of --model."""
    flags.add_argument("--model", "--workdir", metavar="MODEL", help=f"{KINDS} (weights of an installed package)")
    flags.add_argument("--checkpoint", default="reported", help="reported (default), latest, best or a step")
    flags.add_argument("--trust_code", action="store_true", help=cli.TRUST_CODE)


def check(options: argparse.Namespace) -> None:
    """Raises ConfigError unless a model is given."""
    cli.require(options.model, f"--model: missing; give {KINDS}")


def add_versions(flags: argparse.ArgumentParser) -> None:
    """Adds the options of embeddings that are averaged over several versions of each image."""
    flags.add_argument("--flip", action="store_true", help="average the embeddings of an image and its mirror image")
    flags.add_argument("--scales", metavar="S,S,…", default="1", help="average over these sizes, e.g. 1,1.25")


def add_runtime(flags: argparse.ArgumentParser) -> None:
    """Adds the option that says which library embeds."""
    flags.add_argument(
        "--runtime", choices=("jax", "onnxruntime"),
        help="onnxruntime is faster on CPUs; default: onnxruntime if the graph of the model is in the cache, else jax",
    )  # fmt: skip


def versions(options: argparse.Namespace) -> dict[str, Any]:
    """The options of `add_versions` as arguments of `dml_jax.load`; raises ConfigError for other scales."""
    rule = "positive numbers below 10, e.g. --scales=1,1.25"
    scales = cli.numbers("--scales", options.scales, float, rule, lambda scale: 0 < scale < 10)
    return {"flip": options.flip, "scales": scales}
