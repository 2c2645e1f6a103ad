"""The studies of CRT state the numbers of the papers, copied from their tables independently of
`configs/`."""

from pathlib import Path

import pytest

from tests.lab.test_plan import stated

ROOT = Path(__file__).parents[2]


def test_published_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    assert stated("crt:first_prototypes-cub", "prototypes=4x64")["recall@1"] == 0.7557
    assert stated("crt:prototypes-cub", "prototypes=100x100")["recall@8"] == 0.9431
    assert stated("crt:backbones-inshop", "DeiT-S, MS")["recall@1"] == 0.9247
