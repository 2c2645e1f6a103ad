"""HIST's configurations: the schedules of its searches, results beside runs, and its step."""

from pathlib import Path

import pytest

from configs import published
from configs.hist import search
from dml_jax.config import files as config_files
from tests import test_own_data_configs


def test_the_rate_falls_throughout_the_longer_trials_of_the_search() -> None:
    """StepLR halves it every 5 epochs on CUB and every 10 on the others, in all 60; after one epoch
    of warm-up."""
    for variant in search.VARIANTS:
        wanted = search.get_study(variant).search
        assert wanted is not None
        lengths = wanted.overrides({"method.tau": 16.0})
        config = config_files.resolved(
            wanted.config, {key: str(value) for key, value in lengths.items()}
        )
        if variant == "omniglot":
            continue
        assert (config.train.epochs, config.train.milestones) == (60, ())
        assert config.train.period == (5 if variant.startswith("cub") else 10)


def test_published_results_beside_runs() -> None:
    assert published.beside_runs("cub_hist:retuned")["paper"].keys() == {"reproduction"}
    assert published.beside_runs("inshop_hist") == {}


@pytest.mark.parametrize("data", ["omniglot", "digits"])
def test_the_baselines_differ_by_the_method_alone(data: str) -> None:
    expected = test_own_data_configs.kept(test_own_data_configs.values(f"{data}_hist"))
    assert test_own_data_configs.kept(test_own_data_configs.values(f"{data}_baseline")) == expected


def test_one_step_on_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    test_own_data_configs.check_one_step_on_photos("folder_hist", "small", tmp_path)
