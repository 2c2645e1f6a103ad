"""Work directories by length: a run is never continued beyond the length that its study gave it."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from dml_jax.errors import CheckpointError
from dml_jax.studies.plan import Trial, slug
from dml_jax.train.records import workdir


def apart(trials: Sequence[Trial]) -> list[Trial]:
    """The trials, each after those that it needs.

    One whose work directory holds a run of another length gets another directory, and so do those that need it.
    """
    names: dict[str, str] = {}
    lengths: dict[str, dict[str, int]] = {}
    found = []
    for trial in trials:
        length = lengths[trial.name] = trial.length or lengths[trial.needs[0]]  # of an ensemble: of its members
        needs = tuple(names[name] for name in trial.needs)
        name = trial.name
        if needs != trial.needs or _stored_length(trial.directory) not in ({}, length):
            numbers = "".join(f"-{count}{unit}" for unit, count in length.items() if count)
            name = f"{slug(trial.row)}{numbers}-seed{trial.seed}"
        names[trial.name] = name
        root = trial.directory.parent
        directories = {str(root / old): str(root / new) for old, new in names.items()}
        members = tuple(Path(directories[str(path)]) for path in trial.members)
        config = trial.config and _replaced(trial.config, directories)
        found.append(replace(trial, name=name, directory=root / name, config=config, needs=needs, members=members))
    return found


def _stored_length(directory: Path) -> dict[str, int]:
    """The length of the run in a work directory, as `Trial.length`; empty if there is none."""
    with suppress(CheckpointError, KeyError):
        train = workdir.read_config(directory)["config"]["train"]
        return {key: train[key] for key in ("steps", "epochs")}
    return {}


def _replaced(section: Any, texts: Mapping[str, str]) -> Any:
    """A section of a configuration with some of its texts replaced."""
    values = {field.name: getattr(section, field.name) for field in fields(section)}
    changed = {key: texts[value] for key, value in values.items() if isinstance(value, str) and value in texts}
    inner = {key: _replaced(value, texts) for key, value in values.items() if is_dataclass(value)}
    return replace(section, **changed, **inner)
