"""The cards of the configurations: every value that decides a result, with its source.

`PAPER/values.csv` has the values of a paper's configurations, `recipes/values.csv` those of all
others, and `values.csv` what all share. Variants of other configurations that use a paper's method,
such as `cub_vit:hist-vit_small`, add lines to the paper's card. The cards were copied from the
papers and their authors' code, not from the configurations; the tests compare the two. Columns:

    of        which configurations: globs over FILE[:VARIANT]@PROTOCOL, separated by spaces; the
              protocols are clean and paper; `[cis]*` are cub, cars, inshop and sop
    key       globs over the dotted keys of the resolved configuration, separated by spaces
    value     JSON
    state     one of `STATES`
    source    where the value comes from: file and line of the authors' code, a table or section of
              the paper; or why it was chosen

If several lines match a value, the last one applies, so a file lists rules before exceptions.
"""

import csv
import json
from dataclasses import asdict
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from dml_jax.config import Config, flatten
from dml_jax.config.fields import Effect, declared

ROOT = Path(__file__).parent
RECIPES = "recipes"
STATES = {  # a regular expression for what the source must contain
    "as the authors": r"[\w-]+\.\w+:\d+",  # file and line
    "as the paper": r"(Table|Section|Equation|Figure|Appendix|page) ?\w+",
    "as the reproduction": r"(Table|Section|Equation|Figure|Appendix|page) ?\w+",
    "differs": r"\w+",  # inferred from the authors' runs; the source says how
    "not stated": r"\w+",  # neither in the paper nor in code
    "ours": r"\w+",  # chosen for a recipe that is in no paper
    "not used": r"\w+",  # an option of this library that the experiment leaves off
}
# Paths, and evaluations beside the reported one.
WITHOUT_EFFECT = {  # keys
    "name", "seed", "data.path", "backbone.remat", "train.chunks",
    "evaluation.batch_size", "evaluation.controls", "evaluation.diagnose",
}  # fmt: skip


class Line(NamedTuple):
    """A line of `values.csv`."""

    of: str
    key: str
    value: str
    state: str
    source: str


@cache
def read(folder: str) -> tuple[Line, ...]:
    """The lines of a folder's card, in their order; those that all share, for ""."""
    with (ROOT / folder / "values.csv").open(encoding="utf-8", newline="") as file:
        return tuple(Line(**row) for row in csv.DictReader(file))


@cache
def _matches(name: str, globs: str) -> bool:
    return any(fnmatchcase(name, each) for each in globs.split())


@cache
def folders() -> list[str]:
    """The folders that have a card."""
    return sorted(path.parent.name for path in ROOT.glob("*/values.csv"))


def folders_of(experiment: str) -> list[str]:
    """The folders with the cards of FILE[:VARIANT]@PROTOCOL, where FILE is DATA_METHOD; the last
    one has precedence."""
    name, _, variant = experiment.partition("@")[0].partition(":")
    method = name.partition("_")[2]
    if method in folders():
        return ["", method]
    return ["", *({variant.partition("-")[0]} & set(folders())), RECIPES]


def values(config: Config) -> dict[str, Any]:
    """The values that decide the results of a configuration: dotted key -> JSON value."""
    flat = flatten(json.loads(json.dumps(asdict(config))))
    kind: Any = type(config)

    def decides(key: str) -> bool:
        section = key.partition(".")[0]
        marked = section != "evaluation" and Effect.NONE in declared(kind, key)
        return section != "paper" and key not in WITHOUT_EFFECT and not marked

    return {key: value for key, value in flat.items() if decides(key)}


@cache
def _lines_of(experiment: str) -> tuple[Line, ...]:
    """The lines about an experiment, in order of precedence."""
    lines = [line for folder in folders_of(experiment) for line in read(folder)]
    return tuple(line for line in reversed(lines) if _matches(experiment, line.of))


def line_of(experiment: str, key: str) -> Line | None:
    """The line that applies to a value of FILE[:VARIANT]@PROTOCOL."""
    return next((line for line in _lines_of(experiment) if _matches(key, line.key)), None)
