"""The studies of MPN state the numbers of the papers, copied from their tables independently of
`configs/`."""

from pathlib import Path

import pytest

from tests.lab.test_plan import stated

ROOT = Path(__file__).parents[2]


def test_published_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert stated("mpn:embedding_size-inshop", "1024 dimensions")["recall@1"] == 0.917
    assert stated("mpn:embedding_size-cars", "64 dimensions") == {"recall@1": 0.763, "nmi": 0.681}
