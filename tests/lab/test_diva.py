"""The studies of DiVA state the numbers of the papers, copied from their tables independently of
`configs/`."""

from pathlib import Path

import pytest

from tests.lab.test_plan import stated

ROOT = Path(__file__).parents[2]


def test_published_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert stated("diva:tasks-sop", "D + DaNCE + I") == {
        "recall@1": 0.758,
        "recall@10": 0.89,
        "nmi": 0.898,
    }
