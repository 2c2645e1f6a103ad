"""HIST's configurations, with the values and numbers of the paper and its reproduction."""

from pathlib import Path

import pytest

from configs import published
from configs.hist import search
from dml_jax.config import files as config_files
from tests import test_configs, test_own_data_configs
from tests.config.test_effects import check_free
from tests.config.test_needs import check_has_no_effect

NAMES = test_configs.names("hist")
PAPER, REPRODUCTION = "Lim et al., CVPR 2022", "Yuan et al., MLRC 2022"


def test_every_configuration_and_variant_resolves_without_a_warning() -> None:
    assert NAMES == ["cub_hist", "cars_hist", "sop_hist", "inshop_hist"]
    test_configs.check_resolve_without_a_warning("hist", 16)


def test_settings() -> None:
    """Tables 2 and 8 of the reproduction."""
    keys = (
        "method.tau",
        "method.alpha",
        "method.lambda_s",
        "train.groups.distributions.learning_rate",
    )
    expected = {
        "cub_hist": (32.0, 1.1, 1.0, 0.1),
        "cub_hist:retuned": (24.0, 1.15, 1.0, 0.1),
        "cub_hist:bn_inception": (16.0, 1.0, 1.0, 0.05),
        "cub_hist:bn_inception-retuned": (20.0, 0.95, 1.2, 0.05),
        "cars_hist": (32.0, 0.9, 1.0, 0.1),
        "cars_hist:retuned": (32.0, 0.9, 0.8, 0.1),
        "cars_hist:bn_inception": (24.0, 0.9, 1.0, 0.1),
        "cars_hist:bn_inception-retuned": (22.0, 1.0, 1.5, 0.1),
        "sop_hist": (16.0, 2.0, 1.0, 0.01),
        "sop_hist:retuned": (20.0, 2.1, 0.5, 0.01),
        "sop_hist:bn_inception": (16.0, 1.6, 1.0, 0.01),
        "sop_hist:bn_inception-retuned": (12.0, 1.55, 1.5, 0.01),
    }
    test_configs.check_settings(keys, expected)


def test_schedules() -> None:
    """StepLR of the authors' commands, and table 8 of the reproduction."""
    expected = {
        "cub_hist": (40, 5, 0.5), "cars_hist": (50, 10, 0.5), "sop_hist": (60, 10, 0.5),
        "cub_hist:bn_inception": (30, 5, 0.5), "cars_hist:bn_inception": (60, 10, 0.5),
        "sop_hist:bn_inception": (60, 10, 0.5),
    }  # fmt: skip
    test_configs.check_settings(("train.epochs", "train.period", "train.gamma"), expected)


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


@pytest.mark.parametrize("name", NAMES)
def test_variants_and_protocols(name: str) -> None:
    """The authors cluster with scikit-learn."""
    test_configs.check_variants_and_protocols(
        name, nmi_average="geometric", k_means=("k-means++", 10, 300)
    )


@pytest.mark.slow
def test_variants_build() -> None:
    test_configs.check_variants_build(NAMES)


def test_every_configuration_fits_its_weights() -> None:
    test_configs.check_fit_their_weights("hist", {"resnet50", "bn_inception"})


@pytest.mark.parametrize(
    ("of", "source", "paper", "printed"),
    [
        ("cars_hist", "paper", PAPER, {"recall@1": "89.8", "recall@2": "94.0", "nmi": "75.5"}),
        (
            "cub_hist:bn_inception",
            "reproduction",
            REPRODUCTION,
            {"recall@1": "68.7", "nmi": "70.3"},
        ),
        (
            "hist:sizes-cars/embedding_dim=1024 hidden_dim=1024",
            "reproduction",
            REPRODUCTION,
            {"recall@1": "89.97"},
        ),
    ],
)
def test_published_numbers_as_printed(
    of: str, source: str, paper: str, printed: dict[str, str]
) -> None:
    test_configs.check_printed(of, source, paper, printed)


def test_published_results_beside_runs() -> None:
    assert published.beside_runs("cub_hist:retuned")["paper"].keys() == {"reproduction"}
    assert published.beside_runs("inshop_hist") == {}


def test_an_option_of_other_samplers_has_no_effect() -> None:
    check_has_no_effect("cub_hist data.images_per_class=2")


@pytest.mark.parametrize("data", ["omniglot", "digits"])
def test_the_baselines_differ_by_the_method_alone(data: str) -> None:
    expected = test_own_data_configs.kept(test_own_data_configs.values(f"{data}_hist"))
    assert test_own_data_configs.kept(test_own_data_configs.values(f"{data}_baseline")) == expected


def test_one_step_on_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    test_own_data_configs.check_one_step_on_photos("folder_hist", "small", tmp_path)


def test_a_run_is_continued_with_other_values_of_these_options_only() -> None:
    check_free("cub_hist", "last", set())
