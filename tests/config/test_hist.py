"""HIST's configurations: results beside runs, and one step."""

from pathlib import Path

import pytest

from configs import published
from tests import configurations


def test_published_results_beside_runs() -> None:
    assert published.beside_runs("cub_hist:retuned")["paper"].keys() == {"reproduction"}
    assert published.beside_runs("inshop_hist") == {}


@pytest.mark.parametrize("data", ["omniglot", "digits"])
def test_the_baselines_differ_by_the_method_alone(data: str) -> None:
    hist, baseline = (configurations.kept(configurations.values(f"{data}_{name}")) for name in ("hist", "baseline"))
    assert hist == baseline


def test_one_step_on_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    configurations.check_one_step_on_photos("folder_hist", "small", tmp_path)
