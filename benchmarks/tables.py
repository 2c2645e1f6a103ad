"""Tables of measurements: each is a file, `benchmarks/results/NAME.json`, from which pages take it.

    python -m benchmarks.tables    # writes the tables into README, RESULTS and the guides

A page has `<!-- table: NAME -->`, the table, and `<!-- end -->`. A file has the command that
measured it, the date, the commit, the machine, the columns and the rows; `write` makes one.
"""

import datetime
import json
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

from dml_jax.train.records import logs

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).with_name("results")
MARKED = re.compile(r"(<!-- table: (\S+) -->\n).*?(<!-- end -->)", re.DOTALL)


def write(name: str, command: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Stores a table that was measured just now, by the code of the current commit."""
    git = ["git", "describe", "--always", "--dirty"]
    commit = subprocess.run(git, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    facts = {
        "command": command,
        "date": datetime.date.today().isoformat(),
        "commit": commit.strip(),
        "machine": logs.machine(),
    }
    text = json.dumps(facts, indent=1, ensure_ascii=False)[:-2]
    lines = ",\n".join(f"  {json.dumps(row, ensure_ascii=False)}" for row in (columns, *rows))
    path = RESULTS / f"{name}.json"
    path.write_text(f'{text},\n "table": [\n{lines}\n ]\n}}\n', encoding="utf-8")


def markdown(name: str) -> str:
    """A stored table, and below it how it was measured."""
    found = json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8"))
    columns, *rows = found["table"]
    ruler = ["---", *["--:"] * (len(columns) - 1)]
    lines = [f"| {' | '.join(cells)} |" for cells in (columns, ruler, *rows)]
    made = f"`{found['command']}`, {found['date']}, commit {found['commit']}, {found['machine']}"
    return "\n".join([*lines, "", f"<small>{made}</small>"])


def filled(text: str) -> str:
    """A page with its tables."""
    return MARKED.sub(lambda match: f"{match[1]}\n{markdown(match[2])} {match[3]}", text)


def pages() -> Iterator[Path]:
    """The pages that have tables."""
    every = [ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")]
    return (page for page in every if MARKED.search(page.read_text(encoding="utf-8")))


def main() -> None:
    for page in pages():
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
