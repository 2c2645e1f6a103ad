"""The Markdown table of attacks, cases and outcomes."""

from collections import Counter
from typing import NamedTuple


class Row(NamedTuple):
    """The outcomes of one attack; `failures` counts equal ones together."""

    attack: str
    cases: int
    successes: int
    errors: int
    failures: Counter[str]
    seconds: float

    def line(self) -> str:
        """The row in Markdown."""
        values = (self.cases, self.successes, self.errors, self.failures.total(), round(self.seconds))
        return f"| {self.attack} | {' | '.join(f'{value:,}' for value in values)} |"


def markdown(rows: list[Row]) -> str:
    """The table, the sums, and what went wrong."""
    failures = sum((row.failures for row in rows), Counter[str]())
    total = Row("all", sum(r.cases for r in rows), sum(r.successes for r in rows), sum(r.errors for r in rows),
                failures, sum(r.seconds for r in rows))  # fmt: skip
    lines = ["| attack | cases | success | one error line | failures | seconds |", "|---|--:|--:|--:|--:|--:|"]
    lines += [row.line() for row in (*rows, total)]
    listed = [f"- {count} × {row.attack}: {text}" for row in rows for text, count in row.failures.most_common()]
    return "\n".join([*lines, *(["", "Failures:", "", *listed] if listed else [])]) + "\n"
