"""The ledger of claims: statements of the papers as tests that can fail, and their measurements.

A claim names two rows of a study, placebos, and a condition (`Claim`). All of them are
trained with the same seeds and splits of the classes, on a data set by a recipe (`Target`); rows
with the same configuration are trained once, even if they belong to different studies. If the
configuration states choices, options are first tuned on held-out training classes; a placebo uses
the options of the row that it imitates. `verdicts` decides.
"""

import csv
import json
import runpy
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, NamedTuple

import dml_jax
from dml_jax import files
from dml_jax.config import decisive
from dml_jax.config import files as config_files
from dml_jax.errors import ConfigError, require, suggest
from dml_jax.lab import outcomes, plan
from dml_jax.lab.definition import Row, Study
from dml_jax.lab.plan import Trial
from dml_jax.methods.mpn import refinement

HERE = Path(__file__).parent
PERCENT = ("recall@1", "recall@2", "recall@4", "recall@8", "map@r", "nmi", "overfitting")
METRICS = (*PERCENT, "density", "spectral_decay")
BY_CLASS = ("recall@1", "map@r")  # also measured by class, and before training
CHOICE = ("study", "row", "overrides", "recall@1", "chosen")
KEYS = ("study", "row", "split", "seed")  # of a line
END = ("seconds", "data", "code", "machine")
HELD_OUT = 0.3  # of the training classes, for choices
Lines = list[dict[str, str]]


@dataclass(frozen=True)
class Claim:
    """A paper's statement, which the difference between two rows of a study decides.

    Attributes:
      name: unique in its paper.
      says: the statement.
      where: the section, table or figure where it stands.
      study: "PAPER:STUDY"; its variant for a data set is "PAPER:STUDY-DATA".
      rows: names of two rows; the effect is the second minus the first. "ROW + KIND" is a row after
        test-time refinement.
      expects: whether the effect is "higher" than `margin`, "lower" than minus `margin`, or
        "equal", within `margin`.
      margin: the smallest effect, or the margin of equivalence, in the unit of the metric;
        fractions, not percent. With "higher", a negative one is that of non-inferiority.
      metric: the metric of the statement, whatever the data set.
      rows_on: other names of the rows, by data set or recipe.
      placebos: rows that differ from the second one only in that the mechanism is destroyed; its
        parameters are there, apart from those that have no use without the mechanism.
      active: what the second row must measure on average for the mechanism to be at work, e.g.
        ("attention_divergence", "above", 0.05).
    """

    name: str
    says: str
    where: str
    study: str
    rows: tuple[str, str]
    expects: Literal["higher", "lower", "equal"] = "higher"
    margin: float = 0.0
    metric: str = "recall@1"
    rows_on: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    placebos: tuple[str, ...] = ()
    active: tuple[str, Literal["above", "below"], float] | None = None


class Settings(NamedTuple):
    """What all trials have in common."""

    root: Path
    seeds: tuple[int, ...]
    splits: tuple[int, ...] = (0,)  # draws of the training classes, `data.class_split`
    overrides: Mapping[str, str] = {}  # text by dotted key, from `--config.KEY=VALUE`


class Target(NamedTuple):
    """What claims are tested on, from "DATA" or "DATA:RECIPE".

    The variants of studies are named by the recipe, or by the data set for that of its paper. DATA
    is a data set, or with a recipe any name for a folder of images.
    """

    data: str
    recipe: str = ""

    @classmethod
    def of(cls, text: str) -> "Target":
        data, _, recipe = text.partition(":")
        return cls(data, recipe)

    @property
    def variant(self) -> str:
        return self.recipe or self.data

    @property
    def name(self) -> str:
        """Name of the files with the measurements."""
        return "-".join(filter(None, self))

    @property
    def overrides(self) -> dict[str, Any]:
        """What a data set changes in a recipe, which is written for folders of images."""
        formats = Path(dml_jax.__file__).parent / "data" / "formats"
        if not self.recipe or not (formats / f"{self.data}.py").exists():
            return {}
        return {"data.name": self.data, "data.path": f"data/{self.data}"}


def papers() -> tuple[str, ...]:
    """The papers with claims."""
    return tuple(sorted(file.parent.name for file in HERE.glob("*/claims.py")))


def load(paper: str) -> tuple[str, tuple[Claim, ...]]:
    """The title and the claims of a paper, from `PAPER/claims.py`, or of a file."""
    file = HERE / paper / "claims.py" if paper in papers() else Path(paper)
    remedy = f"give a Python file or one of {', '.join(papers())}"
    require(file.is_file(), f"{paper}: there are no claims of this name; {remedy}")
    stated = runpy.run_path(str(file))
    return stated["TITLE"], stated["CLAIMS"]


def selected(papers: Iterable[str], names: Collection[str]) -> dict[str, tuple[Claim, ...]]:
    """The claims of each paper with one of the names, or all; ConfigError if a name is unknown."""
    stated = {paper: load(paper)[1] for paper in papers}
    known = [claim.name for found in stated.values() for claim in found]
    for name in names:
        require(name in known, f"--only={name}: {suggest(name, known)}")
    chosen = {
        paper: tuple(claim for claim in found if not names or claim.name in names)
        for paper, found in stated.items()
    }
    return {paper: found for paper, found in chosen.items() if found}


def study_of(claim: Claim, target: Target) -> Study | None:
    """The study of a claim on a data set or by a recipe; None if it has no such variant."""
    file, _, name = claim.study.partition(":")
    module = config_files.run_file("--study", file)
    variant = f"{name}-{target.variant}"
    return module.get_study(variant) if variant in module.VARIANTS else None


def listed(claims: Mapping[str, Iterable[Claim]], target: Target) -> Iterator[str]:
    """Claims by paper, each with the rows that decide it."""
    for paper, stated in claims.items():
        for claim in stated:
            rows = " against ".join(reversed(rows_of(claim, target)))
            study = f"{claim.study}-{target.variant}: {rows}"
            study += "".join(f", placebo {name}" for name in claim.placebos)
            decided_by = study if study_of(claim, target) else f"no study on {target.variant}"
            yield f"{paper}  {claim.name}: {claim.says} [{claim.where}; {decided_by}]"


def rows_of(claim: Claim, target: Target) -> tuple[str, str]:
    """The names of the two rows."""
    return claim.rows_on.get(target.variant, claim.rows)


def unrefined(name: str) -> str:
    """The row that is refined to "ROW + KIND", KIND being one of `evaluation.refine`; by another
    name, the row itself."""
    row, _, kind = name.rpartition(" + ")
    refines = kind in refinement.KINDS or ("." in kind and kind.replace(".", "").isidentifier())
    return row if row and refines else name


Imitated = dict[tuple[str, str], str]  # the row that a placebo imitates, by study and placebo


def imitated(stating: Iterable[str], target: Target) -> Imitated:
    """The placebos of these and of all known papers, whichever claims are selected."""
    found: Imitated = {}
    for paper in dict.fromkeys([*stating, *papers()]):
        for claim in load(paper)[1]:
            row = unrefined(rows_of(claim, target)[1])
            for name in claim.placebos:
                found.setdefault((claim.study, name), row)
    return found


# Trials by study, row (without the kind of refinement), split and seed; equal ones are one object.
Owners = dict[tuple[str, str, int, int], Trial]
Chosen = Mapping[str, Mapping[str, Any]]  # overrides by row


def distinct(trials: Iterable[Trial]) -> list[Trial]:
    """Each trial once, in their order."""
    return list({trial.name: trial for trial in trials}.values())


def needed(claims: Iterable[Claim], target: Target) -> dict[str, Study]:
    """The studies that decide claims, with the rows that these need.

    ConfigError if a study lacks a row that a claim names, or there is no study.
    """
    studies: dict[str, tuple[Study, list[str]]] = {}
    for claim in claims:
        if (study := study_of(claim, target)) is None:
            continue
        names = studies.setdefault(claim.study, (study, []))[1]
        known = {row.name: row for row in study.rows}
        for row in (*rows_of(claim, target), *claim.placebos):
            name = unrefined(row)
            if name not in known:
                where, remedy = f"{claim.study}-{target.variant}", suggest(name, known)
                raise ConfigError(f"claim {claim.name}: {where} has no row {name!r}; {remedy}")
            names += [*known[name].members, name]
    if not studies:
        raise ConfigError(f"--on={target.variant}: no claim has a study with this data or recipe")
    found = {}
    for name, (study, names) in studies.items():
        rows = [row for row in study.rows if row.name in names]
        names += [other for row in rows for other in plan.referred(row).values()]
        kept = tuple(row for row in study.rows if row.name in names)
        found[name] = replace(study, rows=kept)
    return found


def _made(
    study: Study, target: Target, settings: Settings, folder: str, split: int, chosen: Chosen
) -> list[Trial]:
    """The trials of a study on a split of the classes, in a folder below the root."""
    common = {**target.overrides, "evaluation.diagnose": True, "data.class_split": split}
    rows = tuple(
        replace(row, overrides={**common, **chosen.get(row.name, {}), **row.overrides})
        for row in study.rows
    )
    options = plan.Settings(settings.root / folder, settings.seeds, settings.overrides)
    return [
        replace(
            trial,
            name=f"{folder}/{trial.name}",
            needs=tuple(f"{folder}/{other}" for other in trial.needs),
        )
        for trial in plan.trials(replace(study, rows=rows), options)
    ]


def _evaluated_as(trial: Trial) -> str:
    """A text that is equal for trials that train and evaluate the same."""
    values = asdict(trial.config)  # type: ignore[arg-type]
    tested = {"path": values["data"]["path"], **{k: values[k] for k in ("method", "evaluation")}}
    return json.dumps(decisive(values) | trial.length | {"name": ""} | tested, sort_keys=True)


def planned(
    claims: Iterable[Claim],
    target: Target,
    settings: Settings,
    chosen: Mapping[str, Chosen] = MappingProxyType({}),
) -> Owners:
    """The trials that decide claims, with choices by study; see `needed` for errors."""
    owners: Owners = {}
    trained: dict[str, Trial] = {}
    for name, study in needed(claims, target).items():
        for split in settings.splits:
            folder = f"{plan.slug(name)}-split{split}"
            made = _made(study, target, settings, folder, split, chosen.get(name, {}))
            needed_by_others = {other for trial in made for other in trial.needs}
            for trial in made:
                # Others read a trial in its directory, so another study's cannot replace it.
                fixed = trial.config is None or trial.name in needed_by_others
                same = f"{trial.seed} {trial.directory if fixed else _evaluated_as(trial)}"
                owners[name, trial.row, split, trial.seed] = trained.setdefault(same, trial)
    order = {seed: number for number, seed in enumerate(settings.seeds)}
    return dict(sorted(owners.items(), key=lambda item: (order[item[0][3]], item[0][2])))


class Choice(NamedTuple):
    """A trial on held-out training classes."""

    study: str
    row: str
    overrides: Mapping[str, Any]
    trial: Trial


def choices(
    claims: Sequence[Claim], target: Target, settings: Settings, placebos: Imitated
) -> list[Choice]:
    """The choices of all rows, for placebos those of the rows that they imitate; equal trials are
    one object.

    All rows of a study have the same number, on the same training classes, with one seed.
    """
    studies = {claim.study: study_of(claim, target) for claim in claims}
    trained: dict[str, Trial] = {}
    found = []
    one_seed = settings._replace(seeds=settings.seeds[:1])
    for name, study in needed(claims, target).items():
        whole = studies[name]
        assert whole is not None
        known = {row.name: row for row in whole.rows}
        names = dict.fromkeys(
            placebos.get((name, row.name), row.name) for row in study.rows if not row.members
        )
        for row in map(known.__getitem__, names):
            for number, overrides in enumerate(_stated_choices(row)):
                held_out = {
                    "data.validation_share": HELD_OUT,
                    "train.select": "validation",
                    "evaluation.refine": (),
                    "evaluation.cluster": False,
                }
                tried = Study("", rows=(replace(row, overrides={**row.overrides, **held_out}),))
                folder = f"choices-{plan.slug(name)}-{number}"
                split, made_with = settings.splits[0], {row.name: overrides}
                (made,) = _made(tried, target, one_seed, folder, split, made_with)
                made = trained.setdefault(_evaluated_as(made), made)
                found.append(Choice(name, row.name, overrides, made))
    return found


def _stated_choices(row: Row) -> Sequence[Mapping[str, Any]]:
    file, _, variant = row.config.partition(":")
    module = config_files.run_file("--config", file)
    stated: Sequence[Mapping[str, Any]] = getattr(module, "get_choices", lambda name: ())(variant)
    return stated


def chosen(
    tried: Sequence[Choice], placebos: Imitated, metric: str = "recall@1"
) -> dict[str, dict[str, Mapping[str, Any]]]:
    """The best finished choice of each row and its placebos, by study; the first of equal ones."""
    best: dict[tuple[str, str], tuple[float, Mapping[str, Any]]] = {}
    for choice in tried:
        value = outcomes.read_file(choice.trial.directory).get(metric, -1.0)
        key = choice.study, choice.row
        if key not in best or value > best[key][0]:
            best[key] = value, choice.overrides
    found: dict[str, dict[str, Mapping[str, Any]]] = {}
    for (study, row), (_, overrides) in best.items():
        found.setdefault(study, {})[row] = overrides
    for (study, name), row in placebos.items():
        if (taken := found.get(study, {}).get(row)) is not None:
            found[study][name] = taken
    return found


def choice_lines(tried: Sequence[Choice], made: Mapping[str, Chosen], before: Lines) -> Lines:
    """A line for each finished choice; earlier ones stay, unless their rows chose again. Of equally
    good ones, the first is chosen, and "chosen" says of how many."""
    again = {(choice.study, choice.row) for choice in tried}
    found = [line for line in before if (line["study"], line["row"]) not in again]
    values = [outcomes.read_file(choice.trial.directory).get("recall@1") for choice in tried]
    alike = Counter((c.study, c.row, value) for c, value in zip(tried, values, strict=True))
    for choice, value in zip(tried, values, strict=True):
        if value is not None:
            facts = {"study": choice.study, "row": choice.row}
            facts |= {"overrides": json.dumps(dict(choice.overrides), sort_keys=True)}
            facts |= {"recall@1": f"{value:.6f}", "chosen": ""}
            if made[choice.study][choice.row] is choice.overrides:
                equal = alike[choice.study, choice.row, value]
                facts["chosen"] = f"the first of {equal} equal ones" if equal > 1 else "yes"
            found.append(facts)
    return sorted(found, key=lambda line: (line["study"], line["row"]))


def unfinished(owners: Owners) -> int:
    """The number of runs without a result."""
    return sum(not (trial.directory / "results.json").exists() for trial in owners.values())


def measurements(owners: Owners) -> Lines:
    """A line for each finished seed of each row, refined rows included."""
    from dml_jax.train.controls import PUBLISHED  # imports JAX

    found = []
    for (study, row, split, seed), trial in owners.items():
        if not (results := outcomes.read_file(trial.directory)):
            continue
        facts = outcomes.read_file(trial.directory, "config.json")
        mechanism = results.get("mechanism", {})
        parts = {row: results | results.get("geometry", {}) | mechanism}
        parts |= {f"{row} + {kind}": part for kind, part in results.get("refined", {}).items()}
        untrained = results.get("untrained") or results.get("controls", {}).get(PUBLISHED, {})
        for name, part in parts.items():
            keys = [key for key in (*METRICS, *mechanism) if isinstance(part.get(key), float | int)]
            line = {"study": study, "row": name, "split": str(split), "seed": str(seed)}
            line |= {key: f"{part[key]:.6f}" for key in keys}
            for metric in BY_CLASS:
                if metric in untrained:
                    line[floor(metric)] = f"{untrained[metric]:.6f}"
                if values := part.get("by_class", {}).get(metric):
                    line[by_class(metric)] = packed(values)
            line["seconds"] = f"{results.get('timing', {}).get('seconds', 0.0):.1f}"
            line["data"] = facts.get("data_hash", "")[:12]
            line["code"] = (facts.get("code") or facts.get("commit") or "")[:12]
            line["machine"] = results.get("machine", "")
            found.append(line)
    return found


def floor(metric: str) -> str:
    """The column of a metric of the features before training, on the same test classes."""
    return f"untrained {metric}"


def by_class(metric: str) -> str:
    """The column of a metric's means over the queries of each class."""
    return f"{metric} by class"


def packed(values: Mapping[str, float]) -> str:
    """Values by class as one cell; `unpacked` is the inverse, to four digits."""
    return json.dumps({name: round(value, 4) for name, value in values.items()})


def unpacked(cell: str) -> dict[str, float]:
    found: dict[str, float] = json.loads(cell)
    return found


def columns(lines: Lines) -> list[str]:
    """The columns of lines: keys, metrics, what methods measure, the circumstances, and values by
    class."""
    seen = {key for line in lines for key in line}
    floors, classes = ([of(key) for key in BY_CLASS if of(key) in seen] for of in (floor, by_class))
    measured = sorted(seen - {*KEYS, *METRICS, *END, *floors, *classes})
    return [*KEYS, *(key for key in METRICS if key in seen), *floors, *measured, *END, *classes]


def merged(old: Lines, new: Lines) -> Lines:
    """Lines by study, row, split and seed; new ones replace old ones.

    ConfigError if there are other splits or seeds than new ones have, for that is another plan.
    """
    planned = {(line["split"], line["seed"]) for line in new}
    if new and (others := {(line["split"], line["seed"]) for line in old} - planned):
        split, seed = min(others)
        raise ConfigError(
            f"--output: the measurements there have split {split} with seed {seed}, which is not "
            "in this plan; verdicts are made once for each plan, so give another --output"
        )
    keyed = {tuple(line[key] for key in KEYS): line for line in (*old, *new)}
    lines = list(keyed.values())
    return sorted(lines, key=lambda x: (x["study"], x["row"], int(x["split"]), int(x["seed"])))


def write(path: Path, lines: Lines, columns: Sequence[str]) -> None:
    """Writes lines to a CSV file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_csv(path, [columns, *([line.get(name, "") for name in columns] for line in lines)])


def read(path: Path) -> Lines:
    """The measurements in a CSV file; empty if there is none."""
    if not path.exists():
        return []
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def on_maps(trials: Sequence[Trial]) -> list[Trial]:
    """The trials of heads on stored maps, in the given order, before their ensembles."""
    heads = [trial for trial in trials if trial.config and trial.config.train.feature_views]
    known = {trial.directory for trial in heads}
    return heads + [trial for trial in trials if trial.members and known.issuperset(trial.members)]
