"""`--mode=show`: every key with its value, without data or weights."""

import sys
from pathlib import Path

import pytest

from dml_jax import main

ROOT = Path(__file__).parents[2]


def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> str:
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["dml_jax.main", *arguments])
    assert main.main() == 0
    return capsys.readouterr().out


def test_show_marks_what_differs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    out = printed(capsys, monkeypatch, "--config=configs/cars_hist.py", "--mode=show", "--config.method.tau=20")
    lines = [line.partition("  #")[0] for line in out.splitlines()]
    assert "* method.tau = 20  (default 32)" in lines
    assert "* method.tau = 20  (default 32)  # float > 0; scale of the distances" in out
    assert "  method.lambda_s = 1" in lines
    assert "* train.groups.backbone.warmup = freeze  (default train)" in lines
    assert "  paper = {}" in lines  # it is not the paper's experiment any more
    assert not any(line.startswith("*") and line.endswith("(default )") for line in lines)


def test_the_papers_numbers_stay_with_its_experiment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    out = printed(capsys, monkeypatch, "--config=configs/cars_hist.py", "--mode=show", "--config.seed=3")
    assert "paper = {clean {paper (selected on test) {" in out
    assert "recall@1 0.898" in out


def test_steps_replace_epochs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    out = printed(capsys, monkeypatch, "--config=configs/cars_hist.py", "--mode=show", "--config.train.steps=60")
    assert "train.steps = 60" in out
    assert "train.epochs = 0" in out
