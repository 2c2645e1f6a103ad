"""What is published beside the rows of studies."""

from dataclasses import asdict, replace
from pathlib import Path

from dml_jax.config import published
from dml_jax.lab import plan
from dml_jax.lab.plan import Settings


def stated(file: str, row: str, source: str = "paper") -> dict[str, float]:
    """What is published beside the row of a study; from the root of the project."""
    _, found = plan.load_study(file)
    chosen = next(r for r in found.rows if r.name == row)
    (trial,) = plan.trials(replace(found, rows=(chosen,)), Settings(Path("root")))
    known = published(asdict(trial.config))
    return {**known.get(f"{source} (selected on test)", {}), **chosen.reported.get(source, {})}
