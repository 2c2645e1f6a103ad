"""Content of a study file.

A file `configs/PAPER/studies.py` or `configs/studies/NAME.py` defines `get_study(variant)`, which
returns a `Study`, and `VARIANTS`, the names that it accepts, the default first.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Metrics = Mapping[str, float]  # fractions, by key of `results.json`


@dataclass(frozen=True)
class Row:
    """One row of the table of a study.

    Attributes:
      name: heading of the row; with a seed, the name of its work directories.
      config: "configs/FILE.py" or "configs/FILE.py:VARIANT"; empty for an ensemble.
      overrides: value or whole section by dotted key; text is parsed as the type of the key.
        "@ROW" stands for the work directory of that row with the same seed, which is trained first.
        An override of `seed` is added to the seed of the trial.
      reported: published metrics by source, which replace those of the configuration from the same
        source.
      refined: published metrics after test-time refinement, by kind of batches
        (`evaluation.refine`) and source.
      members: rows whose concatenated embeddings are evaluated; no model is trained.
      weights: factors of the members' embeddings; by default all 1.
    """

    name: str
    config: str = ""
    overrides: Mapping[str, Any] = field(default_factory=dict)
    reported: Mapping[str, Metrics] = field(default_factory=dict)
    refined: Mapping[str, Mapping[str, Metrics]] = field(default_factory=dict)
    members: tuple[str, ...] = ()
    weights: tuple[float, ...] = ()


@dataclass(frozen=True)
class Study:
    """The rows of one table.

    Attributes:
      title: e.g. "Table 3: losses, on CUB-200-2011".
      source: origin of the published numbers and of the claim, in one or two sentences.
      seeds: every row is trained with each seed.
      metric: key of `results.json` that compares rows.
    """

    title: str
    source: str = ""
    rows: tuple[Row, ...] = ()
    seeds: tuple[int, ...] = (0,)
    metric: str = "recall@1"


def grid(
    config: str, values: Mapping[str, Sequence[Any]], overrides: Mapping[str, Any] | None = None
) -> tuple[Row, ...]:
    """A row for every combination of values by dotted key; the first key varies slowest."""
    rows = []
    for combination in itertools.product(*values.values()):
        overridden = dict(zip(values, combination, strict=True))
        name = " ".join(
            f"{key.rpartition('.')[2]}={_text(value)}" for key, value in overridden.items()
        )
        rows.append(Row(name, config, {**(overrides or {}), **overridden}))
    return tuple(rows)


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return "x".join(map(_text, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
