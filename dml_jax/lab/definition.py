"""Content of a study file.

A file `configs/PAPER/studies.py`, or one in `configs/studies/`, defines `get_study(variant)`, which
returns a `Study` of plain data, and the names `VARIANTS` that it accepts, the default first.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Metrics = Mapping[str, float]  # fractions, by key of `results.json`


@dataclass(frozen=True)
class Row:
    """One row of the table of a study.

    Attributes:
      name: heading of the row; with a seed, the name of its work directories.
      config: "configs/FILE.py" or "configs/FILE.py:VARIANT"; empty for an ensemble.
      overrides: value or whole section by dotted key; text is parsed as the type of the key. The
        text "@ROW" stands for the work directory of another row with the same seed, which is
        trained first. An override of `seed` is added to the seed of the trial.
      reported: published metrics by source, in addition to the configuration's from other sources.
      refined: published metrics after test-time refinement, by kind of batches
        (`evaluation.refine`) and source.
      members: rows whose concatenated embeddings are evaluated instead of training a model.
      weights: factors of the members' embeddings; all 1 by default.
    """

    name: str
    config: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    reported: Mapping[str, Metrics] = field(default_factory=dict)
    refined: Mapping[str, Mapping[str, Metrics]] = field(default_factory=dict)
    members: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class Uniform:
    """A range of numbers to search, both bounds included; whole numbers between whole bounds.

    With `log`, the logarithm is uniform.
    """

    low: float
    high: float
    log: bool = False


@dataclass(frozen=True)
class Search:
    """A search for the values of some options.

    Attributes:
      space: by parameter, the choices or a range.
      overrides: the overrides of a trial from the values of its parameters; by default the
        parameters are dotted keys.
      sampler: "random" or "tpe" (tree-structured Parzen estimator).
    """

    config: str
    space: Mapping[str, tuple[Any, ...] | Uniform]
    overrides: Callable[[Mapping[str, Any]], Mapping[str, Any]] = dict
    trials: int = 30
    sampler: Literal["random", "tpe"] = "tpe"


@dataclass(frozen=True)
class Study:
    """The rows of one table, or a search.

    Attributes:
      title: e.g. "Table 3: losses, on CUB-200-2011".
      source: origin of the published numbers and the claim, in one or two sentences.
      seeds: each row is trained with each of them.
      metric: key of `results.json` by which rows and trials are compared.
    """

    title: str
    source: str = ""
    rows: tuple[Row, ...] = ()
    search: Search | None = None
    seeds: tuple[int, ...] = (0,)
    metric: str = "recall@1"


@dataclass(frozen=True)
class Claim:
    """A statement of a paper that the difference between two rows of a study decides.

    Attributes:
      name: unique in its paper.
      says: the statement.
      where: the section, table or figure where it stands.
      study: "FILE:STUDY"; its variant for a data set is "FILE:STUDY-DATA".
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


def grid(
    config: str, values: Mapping[str, Sequence[Any]], overrides: Mapping[str, Any] | None = None
) -> tuple[Row, ...]:
    """A row for every combination of values by dotted key; the first key varies slowest."""
    rows = []
    for combination in itertools.product(*values.values()):
        changed = dict(zip(values, combination, strict=True))
        name = " ".join(
            f"{key.rpartition('.')[2]}={_text(value)}" for key, value in changed.items()
        )
        rows.append(Row(name, config, {**(overrides or {}), **changed}))
    return tuple(rows)


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "x".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
