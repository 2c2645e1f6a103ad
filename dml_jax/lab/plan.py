"""The trials of a study, each with a resolved configuration and a work directory."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from dml_jax import files
from dml_jax.config import Config, decisive
from dml_jax.config import files as config_files
from dml_jax.errors import CheckpointError, ConfigError, refuse, suggest
from dml_jax.lab.definition import Row, Study

FEATURES = "features"  # directory for the features of frozen backbones


@dataclass(frozen=True)
class Settings:
    """Options of the command line for all trials."""

    root: Path  # directory of the study
    seeds: tuple[int, ...] = (0,)
    splits: tuple[int, ...] = (0,)  # draws of the training classes, `data.class_split`
    # Text by dotted key, from `--config.KEY=VALUE`.
    overrides: Mapping[str, str] = field(default_factory=dict)
    paper: bool = False  # use the authors' protocol, which selects models on the test classes
    # Overrides for the data set, beneath those of rows.
    defaults: Mapping[str, Any] = field(default_factory=dict)
    features: str = ""  # where features of frozen backbones are kept; empty: beside the root
    # Overrides by row, chosen on held-out training classes; beneath the row's own, too.
    chosen: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Trial:
    """One run."""

    name: str  # name of its work directory
    row: str  # row of the table
    seed: int  # the study's, to which the row's may be added
    directory: Path  # the work directory
    config: Config | None = None  # None for an ensemble, or if read from `study.json`
    needs: Sequence[str] = ()  # trials that must be finished first
    members: tuple[Path, ...] = ()  # work directories of an ensemble
    weights: tuple[float, ...] = ()  # one per member
    # Steps and epochs, as in `results.json`; empty for an ensemble.
    length: dict[str, int] = field(default_factory=dict)
    split: int = 0  # of the classes


def load(path: str) -> tuple[str, Study]:
    """The name and contents of FILE or FILE:VARIANT; a paper's studies are named by its folder."""
    given, _, variant = path.partition(":")
    _, study = config_files.run_variant("--study", path, "get_study")
    file = config_files.find_file("--study", given).resolve()
    known = {place.resolve(): name for name, place in config_files.known_files("--study").items()}
    name = known.get(file, file.stem).replace("/", "-")
    return name + (f"-{variant}" if variant else ""), study


def comparison(paths: Sequence[str]) -> tuple[str, Study]:
    """The name and the contents of a study that compares configuration files or seeds."""
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
    """All trials of the rows of a study, seed by seed; a trial follows the trials that it needs.

    Raises ConfigError for an invalid configuration or row, and for overrides of what distinguishes
    trials.
    """
    known = [row.name for row in study.rows]
    refuse(
        f"row {row.name!r}: needs {name!r}, which is not a row; {suggest(name, known)}"
        for row in study.rows
        for name in (*row.members, *referred(row).values())
        if name not in known
    )
    for key in settings.overrides:
        if key == "seed" or len({repr(row.overrides.get(key)) for row in study.rows}) > 1:
            raise ConfigError(
                f"--config.{key}: the trials of a study differ in it; for seeds, give --seeds=0,1,2"
            )
    made = [
        _trial(row, seed, split, settings)
        for seed in settings.seeds
        for split in settings.splits
        for row in study.rows
    ]
    count = Counter(trial.name for trial in made)
    twice = (trial for trial in made if count[trial.name] > 1)
    refuse(f"row {t.row!r}: another one has the work directory {t.name}; rename it" for t in twice)
    try:
        order = [*TopologicalSorter({trial.name: trial.needs for trial in made}).static_order()]
    except CycleError as error:
        cycle = " needs ".join(error.args[1][::-1])
        raise ConfigError(f"{cycle}: no trial can be the first; change the rows") from None
    return sorted(made, key=lambda trial: (trial.seed, trial.split, order.index(trial.name)))


def evaluated_as(trial: Trial) -> str:
    """A text that is equal for trials that train and evaluate the same."""
    values = asdict(trial.config)  # type: ignore[arg-type]
    tested = {"path": values["data"]["path"], **{k: values[k] for k in ("method", "evaluation")}}
    return json.dumps(decisive(values) | trial.length | {"name": ""} | tested, sort_keys=True)


def referred(row: Row) -> dict[str, str]:
    """The rows that a row's overrides refer to, by key."""
    texts = {key: value for key, value in row.overrides.items() if isinstance(value, str)}
    return {key: text[1:] for key, text in texts.items() if text[:1] == "@"}


def _trial(row: Row, seed: int, split: int, settings: Settings) -> Trial:
    others = referred(row)
    needed = [*row.members, *others.values()]
    end = (f"-split{split}" if split else "") + f"-seed{seed}"
    directories = {name: settings.root / (slug(name) + end) for name in (row.name, *needed)}
    directory = directories[row.name]
    needs = tuple(directories[name].name for name in needed)
    if row.members:
        members = tuple(directories[name] for name in row.members)
        known = directory.name, row.name, seed, directory
        return Trial(*known, None, needs, members, row.weights, split=split)
    overrides = {**settings.defaults, **settings.chosen.get(row.name, {}), **row.overrides}
    overrides |= {key: str(directories[name]) for key, name in others.items()}
    overrides["seed"] = seed + int(row.overrides.get("seed", 0))
    if split:
        overrides["data.class_split"] = split
    try:
        trial = single(directory, seed, row.config, overrides, settings)
        return replace(trial, row=row.name, split=split, needs=needs)
    except ConfigError as error:
        raise ConfigError(f"row {row.name!r} ({row.config}): {error}") from error


def single(
    directory: Path, seed: int, path: str, overrides: Mapping[str, Any], settings: Settings
) -> Trial:
    """The trial of a configuration file with overrides; the command line takes precedence.

    Features of frozen backbones are kept beside the root, for all studies with roots there.
    """
    every, protocol = {**overrides, **settings.overrides}, "paper" if settings.paper else None
    config = config_files.resolved(path, every, protocol=protocol, typed=settings.overrides)
    if config.train.feature_views and not config.train.features:
        kept = settings.features or str(settings.root.absolute().parent / FEATURES)
        config = replace(config, train=replace(config.train, features=kept))
    length = {"steps": config.train.steps, "epochs": config.train.epochs}
    return Trial(directory.name, directory.name, seed, directory, config, length=length)


@dataclass
class StatedRow:
    """A row in `study.json`, with published metrics by source."""

    name: str
    reported: dict[str, Any]
    refined: dict[str, Any]


@dataclass
class StudyFile:
    """The contents of `study.json`: of a search, or of a study with its trials."""

    study: str
    title: str
    source: str
    metric: str
    paper: bool
    rows: list[StatedRow]
    search: dict[str, Any] | None = None
    trials: list[dict[str, Any]] | None = None


def read_facts(root: Path) -> dict[str, Any] | None:
    """The contents of `study.json`, which marks the directory of a study; None without it."""
    path = root / "study.json"
    return files.read_json(path, StudyFile, "give another --root") if path.exists() else None


def stated_trials(root: Path, facts: Mapping[str, Any]) -> list[Trial]:
    """The trials in `study.json`, without their configurations."""
    trials = []
    for stated in facts["trials"]:
        members = tuple(root / name for name in stated["members"])
        trials.append(Trial(**stated | {"members": members, "directory": root / stated["name"]}))
    return trials


def check_same(trials: Iterable[Trial]) -> None:
    """Raises CheckpointError if a directory holds a run of another configuration."""
    from dml_jax.train.records import workdir  # imports JAX

    for trial in trials:
        if trial.config:
            try:
                workdir.check_same_run(trial.directory, {"config": asdict(trial.config)})
            except CheckpointError as error:
                text = str(error).replace("another --workdir", "another --root")
                raise CheckpointError(text) from None


def begin(
    name: str, study: Study, settings: Settings, made: Sequence[Trial] = ()
) -> dict[str, Any]:
    """Creates the directory of a study with `study.json`, from which tables are made.

    Returns its contents. UserError if the directory or a trial's belongs to something else.
    """
    root, before = settings.root, read_facts(settings.root)
    rows = [StatedRow(row.name, dict(row.reported), dict(row.refined)) for row in study.rows]
    known = name, study.title, study.source, study.metric, settings.paper, rows
    if study.search is None:
        stated = ("name", "row", "seed", "split", "length", "needs")
        trials = [
            {key: getattr(trial, key) for key in stated}
            | {"members": [path.name for path in trial.members]}
            for trial in made
        ]
        facts = asdict(StudyFile(*known, trials=trials))
    else:
        search = {"overrides": dict(settings.overrides), "seed": settings.seeds[0]}
        facts = asdict(StudyFile(*known, search=search))
    if before is None:
        foreign = root.exists() and (not root.is_dir() or any(root.iterdir()))
    else:
        keys = ("study", "search", *(["paper"] if study.search else []))
        foreign = any(before.get(key) != facts.get(key) for key in keys)
    if foreign:
        what = "another study, this search with other options, or other files"
        raise ConfigError(f"--root={root}: holds {what}; give another directory")
    check_same(made)
    (root / "trials").mkdir(parents=True, exist_ok=True)
    files.write_json(root / "study.json", facts)
    return facts
