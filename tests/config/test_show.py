"""`--mode=show`: every key with its value, without data or weights."""

import sys
from pathlib import Path

import pytest

from dml_jax import main

ROOT = Path(__file__).parents[2]


def test_show_marks_what_differs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    changes = ("--config.method.proxy_anchor.alpha=20", "--config.train.steps=60")
    monkeypatch.setattr(
        sys, "argv", ["dml_jax.main", "--config=configs/cars_baseline.py:proxy_anchor", "--mode=show", *changes]
    )
    assert main.main() == 0
    out = capsys.readouterr().out
    lines = [line.partition("  #")[0] for line in out.splitlines()]
    assert "* method.proxy_anchor.alpha = 20  (default 32)  # float > 0; Steepness; greater than 0" in out
    assert {
        "  method.proxy_anchor.margin = 0.1",
        "* train.groups.backbone.warmup = freeze  (default train)",
        "* train.steps = 60  (default 0)",
        "  train.epochs = 0",  # replaced by the steps
        "  paper = {}",  # it is not the paper's experiment any more
    } <= {*lines}
