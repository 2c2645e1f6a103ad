"""The options of the commands that use a model: --model, --checkpoint and --trust_code."""

import argparse

from dml_jax.commands import cli
from dml_jax.errors import ConfigError

KINDS = "the work directory of a run, a directory of converted weights, or lite0"


def add(flags: argparse.ArgumentParser) -> None:
    """Adds the options; --workdir is another spelling of --model."""
    flags.add_argument("--model", "--workdir", metavar="MODEL", help=f"{KINDS} (weights of an installed package)")
    flags.add_argument("--checkpoint", default="reported", help="reported (default), latest, best or a step")
    flags.add_argument("--trust_code", action="store_true", help=cli.TRUST_CODE)


def add_runtime(flags: argparse.ArgumentParser) -> None:
    """Adds --runtime."""
    flags.add_argument("--runtime", default="jax", help="jax (default), or onnx: onnxruntime on the CPU")


def check(options: argparse.Namespace) -> None:
    """Raises ConfigError unless a model is given."""
    if not options.model:
        raise ConfigError(f"--model: missing; give {KINDS}")
