"""The studies of a paper: one for each table or figure and data set.

A line of `studies.csv` in the folder of a paper states the name of a study, its data sets, what
varies, what the paper says about it, and the other method that it needs, if any.
"""

import csv
from collections.abc import Callable
from pathlib import Path

from configs import papers, published
from dml_jax.lab.definition import Row, Study

Rows = tuple[Row, ...]


def contents(
    paper: str, title: str, rows_of: Callable[[str, str], Rows]
) -> tuple[tuple[str, ...], Callable[..., Study]]:
    """VARIANTS, "STUDY-DATA", and `get_study` of a file.

    Args:
      paper: the name of its folder.
      rows_of: from a study and a data set to the rows.
    """
    path = Path(__file__).parent / paper / "studies.csv"
    with path.open(encoding="utf-8", newline="") as lines:
        found = [
            line
            for line in csv.DictReader(lines)
            if not line["needs"] or papers.installed(line["needs"])
        ]
    stated = {f"{line['study']}-{data}": line for line in found for data in line["data"].split()}

    def get_study(variant: str = next(iter(stated))) -> Study:
        line, data = stated[variant], variant.partition("-")[2]
        rows = rows_of(line["study"], data)
        study = Study(f"{title}, {line['title']}: {data}", line["source"], rows)
        return published.beside_rows(f"{paper}:{variant}", study)

    return tuple(stated), get_study
