"""Runs of the launch scripts: a project with a .venv, and how far a run is."""

import json
import sys
from pathlib import Path

from tests.processes import ROOT, TINY, executable

CONFIG = "configs/digits_baseline.py:proxy_anchor"
SHORT = (
    *TINY, "--config.evaluation.controls=false", "--config.train.evaluate_every=0",
    "--config.train.log_every=5",
)  # fmt: skip


def checkout(path: Path) -> None:
    """The project with a .venv whose Python is that of the tests."""
    executable(path / ".venv/bin/python", f'exec {sys.executable} "$@"')
    for name in ("configs", "dml_jax", "launch"):
        (path / name).symlink_to(ROOT / name)


def steps(run: Path) -> list[int]:
    file = run / "metrics.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    return [json.loads(line)["step"] for line in lines]
