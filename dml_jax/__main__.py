"""The console command `dml-jax`, also `python -m dml_jax`.

`dml-jax train …` is `python -m dml_jax.main …`.
"""

import importlib
import sys

from dml_jax.commands import cli
from dml_jax.errors import ConfigError, suggest

COMMANDS = {
    "train": "train, evaluate and export an experiment",
    "inspect": "show how a folder, table or archive of images will be interpreted",
    "prepare": "check and store the images of a data set",
    "convert": "convert published weights",
    "evaluate": "evaluate any embeddings, also combined from several models",
    "embed": "embed images with a trained model",
    "catalogue": "find near-duplicates, clusters and doubtful labels in a folder",
    "enroll": "enroll new classes, classify images",
    "export": "export a model as ONNX, embeddings as Parquet",
    "serve": "serve a model over HTTP",
    "study": "train grids and comparisons; tabulate runs",
    "check": "check your own loss, method, sampler, …",
    "analyse": "draw figures and compute numbers about a run",
    "verify": "check that a run, an index or other artefact has not changed",
    "explore": "same as serve; open its page / in a browser",
}
MODULES = {"train": "dml_jax.main", "explore": "dml_jax.commands.serve"}


def execute() -> None:
    """Runs the command that the first argument names."""
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name in ("-h", "--help"):
        print("usage: dml-jax COMMAND [--help] …\n")
        print("\n".join(f"  {command:<10}{summary}" for command, summary in COMMANDS.items()))
        return
    if name == "--version":
        print(importlib.import_module("dml_jax").__version__)
        return
    sys.argv[:2] = [f"dml-jax {name}"]
    if name not in COMMANDS:
        raise ConfigError(f"{name}: unknown command; {suggest(name, COMMANDS)}")
    command = importlib.import_module(MODULES.get(name, f"dml_jax.commands.{name}"))
    command.execute(sys.argv[1:])


def main() -> int:
    """Runs the command on `sys.argv`; returns its exit code."""
    return cli.exit_code(execute)


if __name__ == "__main__":
    sys.exit(main())
