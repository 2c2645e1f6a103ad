"""For the tests of training: runs write no report, whose figures take longer than such a run."""

import pytest

from dml_jax.analysis import run_report


@pytest.fixture(autouse=True)
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_report, "write", lambda run, results: None)
