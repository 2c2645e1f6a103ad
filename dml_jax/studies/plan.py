"""The trials of a study: each has a resolved configuration and a work directory of its own."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from dml_jax import config as configs
from dml_jax import files
from dml_jax.backbones.weights import store
from dml_jax.config import Config
from dml_jax.config import files as config_files
from dml_jax.errors import ConfigError, suggest
from dml_jax.studies.definition import Row, Study
from dml_jax.train.records import workdir

LENGTHS = {"train.steps": "steps", "train.epochs": "epochs"}


@dataclass(frozen=True)
class Settings:
    """What the command line says about all trials."""

    root: Path  # directory of the study
    seeds: tuple[int, ...] = (0,)  # of every row
    overrides: Mapping[str, str] = field(default_factory=dict)  # text by dotted key, from `--config.KEY=VALUE`
    paper: bool = False  # whether the authors' protocol is used, which selects models on the test classes

    def trial_name(self, row: str) -> str:
        """The name of a row's work directories without the seed; runs of another length have another one."""
        given = [(self.overrides[key], unit) for key, unit in LENGTHS.items() if key in self.overrides]
        return slug(row) + "".join(f"-{number}{unit}" for number, unit in given)


@dataclass(frozen=True)
class Trial:
    """One run."""

    name: str  # of its work directory
    row: str  # of the table
    seed: int  # of the study
    directory: Path  # the work directory
    config: Config | None  # validated; None for an ensemble, and for a trial that is read from `study.json`
    needs: tuple[str, ...] = ()  # trials that must be finished first
    members: tuple[Path, ...] = ()  # work directories of an ensemble
    weights: tuple[float, ...] = ()  # of the members
    # Steps and epochs, as in `results.json`; empty for an ensemble.
    length: dict[str, int] = field(default_factory=dict)


def load(path: str) -> tuple[str, Study]:
    """The name and the contents of a study file, `FILE.py` or `FILE.py:VARIANT`."""
    file, colon, variant = path.partition(":")
    module = config_files.run_file("--study", file)
    if not hasattr(module, "get_study"):
        raise ConfigError(f"--study={path}: has no get_study(), so it is not a study")
    variants = tuple(getattr(module, "VARIANTS", ()))
    if colon and variant not in variants:
        known = suggest(variant, variants) if variants else "this study has none"
        raise ConfigError(f"--study={path}: there is no variant {variant!r}; {known}")
    with config_files.running(f"--study={path}"):
        study = module.get_study(variant) if colon else module.get_study()
    if not isinstance(study, Study):
        raise ConfigError(f"--study={path}: get_study() must return a Study, not {type(study).__name__}")
    return Path(file).stem + (f"-{variant}" if variant else ""), study


def comparison(paths: Sequence[str]) -> tuple[str, Study]:
    """The name and the contents of a study that compares configuration files, or the seeds of one."""
    if len(set(paths)) < len(paths):
        raise ConfigError("--compare: give different configurations, e.g. configs/a.py configs/b.py")
    names = [Path(path).name.replace(".py", "", 1) for path in paths]
    if len(set(names)) < len(names):
        names = [path.removeprefix("configs/").replace(".py", "", 1) for path in paths]
    rows = tuple(Row(name, path) for name, path in zip(names, paths, strict=True))
    title = " and ".join([", ".join(names[:-1])] * (len(names) > 1) + names[-1:])
    return slug("-".join(names))[:100], Study(title, rows=rows)


def slug(name: str) -> str:
    """A row's name as part of a file name."""
    return re.sub(r"[^\w.+-]+", "-", name).lstrip("-")


def trials(study: Study, settings: Settings) -> list[Trial]:
    """All trials of the rows of a study, seed by seed, in an order in which a trial follows those that it needs.

    Raises ConfigError for an invalid configuration, no rows, equal names, or overrides of what distinguishes trials.
    """
    if not study.rows:
        raise ConfigError(f"{study.title}: has no rows; give rows or a search")
    for key in settings.overrides:
        if key == "seed":
            raise ConfigError("--config.seed: a study has one seed per trial; give --seeds=0,1,2")
        if len({repr(row.overrides.get(key)) for row in study.rows}) > 1:
            raise ConfigError(f"--config.{key}: the rows of this study differ in it, so it cannot be the same for all")
    if not settings.seeds or len(set(settings.seeds)) < len(settings.seeds):
        raise ConfigError(f"--seeds={','.join(map(str, settings.seeds))}: give different seeds, e.g. 0,1,2")
    made = [_trial(row, seed, settings, study) for seed in settings.seeds for row in study.rows]
    owners: dict[str, Trial] = {}
    seen: dict[str, Trial] = {}
    for trial in made:
        other = owners.setdefault(trial.name.lower(), trial)
        if other is not trial:
            raise ConfigError(
                f"rows {other.row!r} and {trial.row!r}: would share the work directory {trial.directory}; rename one"
            )
        if trial.config and (other := seen.setdefault(_evaluated_as(trial), trial)) is not trial:
            raise ConfigError(
                f"rows {other.row!r} and {trial.row!r}: train and evaluate the same configuration, so there is nothing "
                "to compare; change the overrides, or leave one out"
            )
    return _in_order(made)


def _evaluated_as(trial: Trial) -> str:
    """Equal for trials that train and evaluate the same."""
    values = asdict(trial.config)  # type: ignore[arg-type]
    tested = {key: values[key] for key in ("method", "evaluation")}
    same = configs.decisive(values) | trial.length | {"name": "", "path": values["data"]["path"], **tested}
    return json.dumps(same, sort_keys=True)


def _is_reference(value: Any) -> bool:
    return isinstance(value, str) and value.startswith("@")


def _trial(row: Row, seed: int, settings: Settings, study: Study) -> Trial:
    needed = [*row.members, *(value[1:] for value in row.overrides.values() if _is_reference(value))]
    names = {other.name for other in study.rows}
    for name in needed:
        if name not in names:
            raise ConfigError(f"row {row.name!r}: needs {name!r}, which is not a row; {suggest(name, names)}")
    directories = {name: settings.root / f"{settings.trial_name(name)}-seed{seed}" for name in (row.name, *needed)}
    directory = directories[row.name]
    needs = tuple(directories[name].name for name in needed)
    if row.members:
        members = tuple(directories[name] for name in row.members)
        if row.weights and len(row.weights) != len(members):
            raise ConfigError(f"row {row.name!r}: has {len(members)} members and {len(row.weights)} weights")
        return Trial(directory.name, row.name, seed, directory, None, needs, members, row.weights)
    overrides = {
        key: str(directories[value[1:]]) if _is_reference(value) else value for key, value in row.overrides.items()
    }
    overrides["seed"] = seed + int(row.overrides.get("seed", 0))
    try:
        config = resolved(row.config, overrides, settings)
    except ConfigError as error:
        raise ConfigError(f"row {row.name!r} ({row.config}): {error}") from error
    return Trial(directory.name, row.name, seed, directory, config, needs, length=length(config))


def length(config: Config) -> dict[str, int]:
    """`Trial.length` of a configuration."""
    return {"steps": config.train.steps, "epochs": config.train.epochs}


def resolved(path: str, overrides: Mapping[str, Any], settings: Settings) -> Config:
    """A valid configuration with overrides, of which those of the command line take precedence."""
    protocol = "paper" if settings.paper else None
    every = {**overrides, **settings.overrides}
    return config_files.resolved(path, every, protocol=protocol, typed=settings.overrides)


def _in_order(made: list[Trial]) -> list[Trial]:
    done: dict[str, Trial] = {}
    waiting = list(made)
    while waiting:
        ready = [trial for trial in waiting if all(name in done for name in trial.needs)]
        if not ready:
            raise ConfigError(f"row {waiting[0].row!r}: needs itself; remove the cycle of rows that need each other")
        done |= {trial.name: trial for trial in ready}
        waiting = [trial for trial in waiting if trial.name not in done]
    return list(done.values())


def check_root(root: Path, study: str, made: Sequence[Trial]) -> None:
    """Raises UserError if the directory belongs to another study, or that of a trial to another run."""
    if (root.exists() and not root.is_dir()) or files.below_a_file(root):
        raise ConfigError(f"--root={root}: is a file or below one; give a directory")
    facts = read_facts(root)
    if facts is None and root.exists() and any(root.iterdir()):
        raise ConfigError(f"--root={root}: is not empty and belongs to no study; give another directory")
    if facts is not None and (facts["study"], "search" not in facts) != (study, bool(made)):
        raise ConfigError(f"--root={root}: belongs to the study {facts['study']}; give another directory")
    for trial in made:
        if trial.config:
            workdir.check_same_run(trial.directory, trial.config)


def check_sources(made: Sequence[Trial]) -> None:
    """Raises ConfigError if data, weights or runs that the trials need are missing."""
    own = {str(trial.directory) for trial in made}
    for trial in made:
        flat = configs.flatten(asdict(trial.config)) if trial.config else {}
        for key in configs.PATHS:
            path = str(flat.get(key) or "")
            if path in ("", "none") or path in own or files.is_url(path):
                continue
            source = files.expand_path(key, path)
            if key == "backbone.pretrained":
                source = store.directory(source)
            if not source.exists():
                raise ConfigError(
                    f"row {trial.row!r}: {key}={path}: does not exist; prepare the data with `dml-jax prepare`, get "
                    f"weights with `dml-jax convert`, or give --config.{key}=…"
                )


@dataclass
class _Stated:
    name: str
    row: str
    seed: int
    length: dict[str, int] = field(default_factory=dict)
    needs: list[str] = field(default_factory=list)
    members: list[str] = field(default_factory=list)


@dataclass
class _Facts:
    study: str
    title: str
    source: str
    metric: str
    paper: bool
    rows: list[dict[str, Any]]
    trials: list[_Stated] = field(default_factory=list)
    search: dict[str, Any] = field(default_factory=dict)


def read_facts(root: Path) -> dict[str, Any] | None:
    """The contents of `study.json`, which marks the directory of a study; None if there is no such file."""
    path = root / "study.json"
    if not path.exists():
        return None
    facts: dict[str, Any] = files.read_json(path, _Facts, "give another --root")
    return facts


def stated_trials(root: Path, facts: Mapping[str, Any]) -> list[Trial]:
    """The trials in `study.json`, without their configurations."""
    return [
        Trial(
            trial["name"], trial["row"], trial["seed"], root / trial["name"], None, tuple(trial["needs"]),
            tuple(root / name for name in trial["members"]), length=trial["length"],
        )
        for trial in facts["trials"]
    ]  # fmt: skip


def write_facts(
    root: Path, name: str, study: Study, settings: Settings, *, made: Sequence[Trial] = (), search: Any = None
) -> None:
    """Creates the directory of a study with `study.json`, from which tables are made: its trials or its search."""
    (root / "trials").mkdir(parents=True, exist_ok=True)
    facts: dict[str, Any] = {"study": name, "title": study.title, "source": study.source, "metric": study.metric}
    facts["paper"] = settings.paper
    facts["rows"] = [{"name": r.name, "reported": dict(r.reported), "refined": dict(r.refined)} for r in study.rows]
    if search is None:
        facts["trials"] = [
            {"name": trial.name, "row": trial.row, "seed": trial.seed, "length": trial.length, "needs": trial.needs}
            | {"members": [path.name for path in trial.members]}
            for trial in made
        ]
    else:
        facts["search"] = search
    files.write_json(root / "study.json", facts)
