"""Compares the speed with that of other libraries in interleaved calls; best on a quiet machine.

    python -m benchmarks.all [--only=methods,losses] [--photos=photos.zip]     writes benchmarks/TIMINGS.md and .json
    python -m benchmarks.all --compare=previous                                compares with them and writes nothing

Times depend on the machine, and its speed drifts; the ratio to a peer in the same run hardly does.
So a comparison fails if a ratio has fallen by more than `--tolerance`.
"""  # noqa: E501

import argparse
import json
import os
import platform
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import backbones, evaluation, input, losses, methods
from benchmarks.timing import Row, table

OUTPUT = Path(__file__).with_name("TIMINGS.md")
TABLES: dict[str, Callable[[], Iterable[Row]]] = {
    "methods": methods.rows,
    "losses": losses.rows,
    "evaluation": evaluation.rows,
    "backbones": backbones.rows,
    "lite0": backbones.lite0,
}


def machine() -> str:
    """The processor, the number of its cores that this process may use, and the load of the last
    minute."""
    lines = Path("/proc/cpuinfo").read_text().splitlines() if sys.platform == "linux" else []
    names = [line.partition(": ")[2] for line in lines if line.startswith("model name")]
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count()
    return (
        f"{cores} cores of {names[0] if names else platform.machine()}, load "
        f"{os.getloadavg()[0]:.1f} at the start"
    )


def measure(name: str, rows: Callable[[], Iterable[Row]]) -> dict[str, Any]:
    """Measures a table: "date", "machine" and "rows"."""
    about = {"date": datetime.now(UTC).strftime("%Y-%m-%d"), "machine": machine()}
    print(f"{name}: {about['machine']}", flush=True)
    found = list(rows())
    print(table(found), flush=True)
    return {**about, "rows": found}


def markdown(tables: dict[str, dict[str, Any]]) -> str:
    """The contents of TIMINGS.md."""
    intro = (
        "# Timings\n\nWritten by `python -m benchmarks.all`. Medians; the last two columns are "
        "the median and the "
        "quartiles of the\nratios of interleaved calls.\n"
    )
    parts = [
        f"\n## {name}\n\n{each['date']}, {each['machine']}\n\n{table(each['rows'])}\n"
        for name, each in tables.items()
    ]
    return intro + "".join(parts)


def regressions(
    new: dict[str, dict[str, Any]], old: dict[str, dict[str, Any]], tolerance: float
) -> list[str]:
    """A sentence for each case whose ratio to its peer has fallen by more than `tolerance`, a share
    of the old one."""
    before = {
        (name, row["case"]): row["ratio"] for name, each in old.items() for row in each["rows"]
    }
    return [
        f"{name}, {row['case']}: {row['ratio']:.2f} times as fast as the peer, {was:.2f} before"
        for name, each in new.items()
        for row in each["rows"]
        if (was := before.get((name, row["case"])))
        and row["ratio"]
        and row["ratio"] < (1 - tolerance) * was
    ]


def main() -> int:
    """Runs the tables; returns the exit code."""
    flags = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    flags.add_argument(
        "--only", help="tables separated by commas; the others keep their last values"
    )
    flags.add_argument(
        "--photos", type=Path, help="archive of photographs, for the table of the input pipeline"
    )
    flags.add_argument("--compare", choices=["previous"], help="compare with the last written file")
    flags.add_argument(
        "--tolerance", type=float, default=0.25, help="largest share by which a ratio may fall"
    )
    options = flags.parse_args()
    known = TABLES | ({"input": lambda: input.rows(options.photos)} if options.photos else {})
    chosen = options.only.split(",") if options.only else list(known)
    if unknown := [name for name in chosen if name not in known]:
        flags.error(
            f"--only={','.join(unknown)}: known are {', '.join(known)} and, with --photos, input"
        )
    record = OUTPUT.with_suffix(".json")
    old = json.loads(record.read_text()) if record.exists() else {}
    if options.compare and not old:
        flags.error(f"--compare={options.compare}: there is no {record}; run without it first")
    new = {name: measure(name, known[name]) for name in chosen}
    if not options.compare:
        record.write_text(json.dumps(old | new, indent=1) + "\n")
        OUTPUT.write_text(markdown(old | new))
        return 0
    slower = regressions(new, old, options.tolerance)
    for sentence in slower:
        print(f"slower by more than {options.tolerance:.0%}: {sentence}")
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
