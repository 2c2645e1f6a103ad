"""Attacks the library with hostile input and with signals, and prints a table of outcomes:

    python -m benchmarks.faults [--fuzz=10000] [--commands=200] [--kills=100] [--terms=50]
    [--seed=0] [--jobs=2]

`--fuzz` cases run in this process, `--commands` through the real commands; both must end in success
or in one error line. `--kills` and `--terms` interrupt training runs of every method at random
moments (see `interruptions.py`); the same command then continues, and the result must be that of an
uninterrupted run, bit for bit. Takes hours on two cores; 0 skips a part. The inputs are those of
`tests/reliability`, which explains what counts as a failure. Needs requirements-dev.txt.

    python -m benchmarks.faults cluster [--faults=EIO,503,…] [--moments=save,…] [--jobs=1]

prints what becomes of a run that meets a fault of a cluster (see `cluster_faults.py`).

    python -m benchmarks.faults flips [--flips=400] [--seed=0]

flips single bits in the files of a run, a graph and an index (see `bit_flips.py`).
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import hypothesis
from hypothesis import HealthCheck, Phase

from benchmarks import bit_flips, cluster_faults, interruptions
from benchmarks.interruptions import Row
from tests.reliability import sandbox
from tests.reliability.attacks import ATTACKS
from tests.reliability.sandbox import ROOT, Attack, Files, Outcome

COMMAND_SECONDS = 300.0  # for seconds of work, because the machine may be busy


def each_case(attack: Attack, cases: int, seed: int, use: Callable[[Files], None]) -> None:
    """Calls `use` with hostile input, `cases` times."""

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=cases,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @hypothesis.given(files=attack.files)
    def draw(files: Files) -> None:
        use(files)

    draw()


def shares(total: int, attacks: dict[str, Attack]) -> Iterator[tuple[str, Attack, int]]:
    """The attacks with their numbers of cases."""
    shared = sum(attack.share for attack in attacks.values())
    for name, attack in attacks.items():
        yield name, attack, max(1, round(total * attack.share / shared))


def counted(name: str, outcomes: list[Outcome], began: float) -> Row:
    """The row of the table of an attack."""
    kinds = Counter(outcome.kind for outcome in outcomes)
    failures = Counter(outcome.text for outcome in outcomes if outcome.kind == "failure")
    return Row(
        name, len(outcomes), kinds["success"], kinds["error"], failures, time.monotonic() - began
    )


def fuzz(total: int, seed: int) -> Iterator[Row]:
    """Reads hostile input in this process."""
    for name, attack, cases in shares(total, ATTACKS):
        began, outcomes = time.monotonic(), list[Outcome]()

        def use(
            files: Files,
            read: Callable[[Path], object] = attack.read,
            seen: list[Outcome] = outcomes,
        ) -> None:
            seen.append(sandbox.run(read, files))

        each_case(attack, cases, seed, use)
        yield counted(name, outcomes, began)


def commands(total: int, seed: int, jobs: int) -> Iterator[Row]:
    """Reads hostile input by the real commands."""
    attacks = {name: attack for name, attack in ATTACKS.items() if attack.command}
    for name, attack, cases in shares(total, attacks):
        began, inputs = time.monotonic(), list[Files]()
        each_case(attack, cases, seed + 1, inputs.append)
        with ThreadPoolExecutor(jobs) as pool:
            outcomes = list(pool.map(partial(command, attack), inputs))
        yield counted(f"{name}, command", outcomes, began)


def command(attack: Attack, files: Files) -> Outcome:
    """Runs the command of an attack on hostile input."""
    assert attack.command is not None
    with tempfile.TemporaryDirectory() as folder:
        sandbox.write(Path(folder), files)
        module, *arguments = attack.command(Path(folder))
        name = "train" if module == "main" else module
        try:
            done = subprocess.run(
                [sys.executable, "-m", "dml_jax", name, *arguments],
                cwd=ROOT, capture_output=True, timeout=COMMAND_SECONDS, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return Outcome("failure", f"more than {COMMAND_SECONDS:g} s")
        except ValueError:  # the operating system passes no such argument
            return Outcome("error", "not started")
        return sandbox.judge_output(done.returncode, done.stderr.decode(errors="replace"))


def markdown(rows: list[Row]) -> str:
    """The table, the sums, and what went wrong."""
    failures = sum((row.failures for row in rows), Counter[str]())
    total = Row(
        "all",
        sum(r.cases for r in rows),
        sum(r.successes for r in rows),
        sum(r.errors for r in rows),
        failures,
        sum(r.seconds for r in rows),
    )
    lines = [
        "| attack | cases | success | one error line | failures | seconds |",
        "|---|--:|--:|--:|--:|--:|",
    ]
    lines += [row.line() for row in (*rows, total)]
    listed = [
        f"- {count} × {row.attack}: {text}"
        for row in rows
        for text, count in row.failures.most_common()
    ]
    return "\n".join([*lines, *(["", "Failures:", "", *listed] if listed else [])]) + "\n"


def main() -> int:
    """Runs the attacks and prints the table; returns 1 if there was a failure."""
    if sys.argv[1:2] == ["cluster"]:
        return cluster_faults.main(sys.argv[2:])
    if sys.argv[1:2] == ["flips"]:
        return bit_flips.main(sys.argv[2:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in {
        "fuzz": 10_000,
        "commands": 200,
        "kills": 100,
        "terms": 50,
        "seed": 0,
        "jobs": 2,
    }.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--output", type=Path, help="Markdown file to write")
    options = parser.parse_args()
    rows: list[Row] = []
    parts = (
        (options.fuzz, lambda: fuzz(options.fuzz, options.seed)),
        (options.commands, lambda: commands(options.commands, options.seed, options.jobs)),
        (
            options.kills + options.terms,
            lambda: interruptions.run(options.kills, options.terms, options.seed, options.jobs),
        ),
    )
    for wanted, part in parts:
        for row in part() if wanted else ():
            rows.append(row)
            print(row.line(), flush=True)
    text = markdown(rows)
    print(f"\n{text}")
    if options.output:
        options.output.write_text(text, encoding="utf-8")
    return int(any(row.failures for row in rows))


if __name__ == "__main__":
    sys.exit(main())
