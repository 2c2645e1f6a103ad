"""The trials of a study, each with a resolved configuration and a work directory."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from dml_jax import files
from dml_jax.config import Config
from dml_jax.config import files as config_files
from dml_jax.errors import CheckpointError, ConfigError, refuse, suggest
from dml_jax.lab.definition import Row, Study

FEATURES = "features"  # directory for the features of frozen backbones


@dataclass(frozen=True)
class Settings:
    """Options of the command line for all trials."""

    root: Path  # directory of the study
    seeds: tuple[int, ...] = (0,)
    # Text by dotted key, from `--config.KEY=VALUE`.
    overrides: Mapping[str, str] = field(default_factory=dict)
    paper: bool = False  # use the authors' protocol, which selects models on the test classes


@dataclass(frozen=True)
class Trial:
    """One run of a study."""

    name: str  # name of its work directory
    row: str  # row of the table
    seed: int  # of the study; the row may add its own
    directory: Path  # the work directory
    config: Config | None = None  # None for an ensemble or if read from `study.json`
    needs: Sequence[str] = ()  # trials that must be finished first
    members: tuple[Path, ...] = ()  # work directories of an ensemble
    weights: tuple[float, ...] = ()  # one per member
    # Steps and epochs, as in `results.json`; empty for an ensemble.
    length: dict[str, int] = field(default_factory=dict)


def load_study(path: str) -> tuple[str, Study]:
    """The name and content of FILE or FILE:VARIANT; a paper's study has the name of its folder."""
    path_without_variant, _, variant = path.partition(":")
    _, study = config_files.run_variant("--study", path, "get_study")
    file = config_files.find_file("--study", path_without_variant).resolve()
    shipped = {
        shipped_file.resolve(): name
        for name, shipped_file in config_files.known_files("--study").items()
    }
    name = shipped.get(file, file.stem).replace("/", "-")
    return name + (f"-{variant}" if variant else ""), study


def comparison(paths: Sequence[str]) -> tuple[str, Study]:
    """The name and content of a study that compares configuration files or seeds."""
    paths = list(dict.fromkeys(paths))
    names = [Path(path).name.replace(".py", "", 1) for path in paths]
    if len(set(names)) < len(names):
        names = [path.removeprefix("configs/").replace(".py", "", 1) for path in paths]
    rows = tuple(Row(name, path) for name, path in zip(names, paths, strict=True))
    return slug("-".join(names))[:100], Study(", ".join(names), rows=rows)


def slug(name: str) -> str:
    """A row's name as part of a file name."""
    return re.sub(r"[^\w.+-]+", "-", name).lstrip("-")


def trials(study: Study, settings: Settings) -> list[Trial]:
    """All trials of a study, seed by seed, each after the trials that it needs.

    Raises ConfigError for an invalid configuration or row, and for an override of an option in
    which trials differ.
    """
    names = [row.name for row in study.rows]
    refuse(
        f"row {row.name!r}: needs {name!r}, which is not a row; {suggest(name, names)}"
        for row in study.rows
        for name in (*row.members, *referred(row).values())
        if name not in names
    )
    for key in settings.overrides:
        if key == "seed" or len({repr(row.overrides.get(key)) for row in study.rows}) > 1:
            raise ConfigError(
                f"--config.{key}: the trials of the study differ in this option; for seeds, give "
                "--seeds=0,1,2"
            )
    all_trials = [_trial(row, seed, settings) for seed in settings.seeds for row in study.rows]
    count = Counter(trial.name for trial in all_trials)
    duplicates = (trial for trial in all_trials if count[trial.name] > 1)
    refuse(
        f"row {t.row!r}: another row also has the work directory {t.name}; rename one"
        for t in duplicates
    )
    try:
        order = [
            *TopologicalSorter({trial.name: trial.needs for trial in all_trials}).static_order()
        ]
    except CycleError as error:
        cycle = " needs ".join(error.args[1][::-1])
        raise ConfigError(
            f"{cycle}: these trials wait for each other; remove one of the references"
        ) from None
    return sorted(all_trials, key=lambda trial: (trial.seed, order.index(trial.name)))


def referred(row: Row) -> dict[str, str]:
    """The rows to which a row's overrides refer, by key."""
    texts = {key: value for key, value in row.overrides.items() if isinstance(value, str)}
    return {key: text[1:] for key, text in texts.items() if text[:1] == "@"}


def _trial(row: Row, seed: int, settings: Settings) -> Trial:
    """Stores features of frozen backbones next to the root, to share them between studies."""
    references = referred(row)
    required = [*row.members, *references.values()]
    directories = {
        name: settings.root / f"{slug(name)}-seed{seed}" for name in (row.name, *required)
    }
    directory = directories[row.name]
    needs = tuple(directories[name].name for name in required)
    if row.members:
        members = tuple(directories[name] for name in row.members)
        return Trial(directory.name, row.name, seed, directory, None, needs, members, row.weights)
    overrides = {
        **row.overrides,
        **{key: str(directories[name]) for key, name in references.items()},
    }
    overrides["seed"] = seed + int(row.overrides.get("seed", 0))
    all_overrides, protocol = (
        {**overrides, **settings.overrides},
        "paper" if settings.paper else None,
    )
    try:
        config = config_files.resolved(
            row.config, all_overrides, protocol=protocol, typed=settings.overrides
        )
    except ConfigError as error:
        raise ConfigError(f"row {row.name!r} ({row.config}): {error}") from error
    if config.train.feature_views and not config.train.features:
        features = str(settings.root.absolute().parent / FEATURES)
        config = replace(config, train=replace(config.train, features=features))
    length = {"steps": config.train.steps, "epochs": config.train.epochs}
    return Trial(directory.name, row.name, seed, directory, config, needs, length=length)


@dataclass
class RowRecord:
    """A row in `study.json` with published metrics by source."""

    name: str
    reported: dict[str, Any]
    refined: dict[str, Any]


@dataclass
class StudyFile:
    """The contents of `study.json`."""

    study: str
    title: str
    source: str
    metric: str
    paper: bool
    rows: list[RowRecord]
    trials: list[dict[str, Any]]


def read_facts(root: Path) -> dict[str, Any] | None:
    """The contents of `study.json`, which marks the directory of a study; None if it is missing."""
    path = root / "study.json"
    return files.read_json(path, StudyFile, "give another --root") if path.exists() else None


def read_trials(root: Path, facts: Mapping[str, Any]) -> list[Trial]:
    """The trials in `study.json`, without their configurations."""
    trials = []
    for entry in facts["trials"]:
        members = tuple(root / name for name in entry["members"])
        trials.append(Trial(**entry | {"members": members, "directory": root / entry["name"]}))
    return trials


def check_same(trials: Iterable[Trial]) -> None:
    """Raises CheckpointError if a work directory contains a different run."""
    from dml_jax.train.records import workdir  # imports JAX

    for trial in trials:
        if trial.config:
            try:
                workdir.check_same_run(trial.directory, {"config": asdict(trial.config)})
            except CheckpointError as error:
                text = str(error).replace("another --workdir", "another --root")
                raise CheckpointError(text) from None


def create_study(
    name: str, study: Study, settings: Settings, planned: Sequence[Trial]
) -> dict[str, Any]:
    """Creates the directory of a study and its `study.json`, whose contents it returns.

    UserError if the directory, or that of a trial, is used by something else.
    """
    root, existing = settings.root, read_facts(settings.root)
    keys = ("name", "row", "seed", "length", "needs")
    facts = {
        "study": name,
        **{key: getattr(study, key) for key in ("title", "source", "metric")},
        "paper": settings.paper,
        "rows": [
            {key: getattr(row, key) for key in ("name", "reported", "refined")}
            for row in study.rows
        ],
        "trials": [
            {key: getattr(trial, key) for key in keys}
            | {"members": [path.name for path in trial.members]}
            for trial in planned
        ],
    }
    if existing is None:
        occupied = root.exists() and (not root.is_dir() or any(root.iterdir()))
    else:
        occupied = existing["study"] != name
    if occupied:
        problem = "contains another study or other files; give another directory"
        raise ConfigError(f"--root={root}: {problem}")
    check_same(planned)
    (root / "trials").mkdir(parents=True, exist_ok=True)
    files.write_json(root / "study.json", facts)
    return facts
