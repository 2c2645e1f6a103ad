"""The configuration of a run that is analysed or explored on its data."""

from collections.abc import Mapping
from pathlib import Path

from dml_jax import files
from dml_jax.config import Config
from dml_jax.config import files as config_files
from dml_jax.errors import ConfigError
from dml_jax.inference.embedding_model import is_run, locate
from dml_jax.train.records import workdir

# Keys that may be overridden, e.g. because the data has moved.
MOVABLE = ("data.path", "data.threads", "evaluation.batch_size")


def read(model: str, overrides: Mapping[str, str], *, trust_code: bool) -> tuple[Config, Path]:
    """The configuration of a run, with overrides of `MOVABLE` keys, and its work directory."""
    if model.startswith(files.BUCKETS):
        raise ConfigError(
            f"--model={model}: analyses are written into the run; copy it to a directory first"
        )
    directory = locate(model)
    if not is_run(directory):
        raise ConfigError(
            f"--data: missing; {model} has no data of its own, give a folder of class folders"
        )
    workdir.read_config(directory)  # explains a missing or damaged file
    for key in overrides:
        if key not in MOVABLE:
            allowed = ", ".join(MOVABLE)
            raise ConfigError(f"--config.{key}: belongs to the run; only {allowed} can be given")
    file = str(directory / "config.json")
    config = config_files.resolved(file, dict(overrides), trust_code=trust_code)
    if config.data.path and not Path(config.data.path).expanduser().is_dir():
        raise ConfigError(
            f"data.path={config.data.path}: the data of the run are not there; give their "
            "directory with --config.data.path=DIRECTORY"
        )
    return config, directory
