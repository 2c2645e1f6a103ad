"""MPN's configurations, with the values and numbers of the paper, its authors' code and its
reproduction."""

from typing import Any

import pytest

from configs import published
from tests import test_configs
from tests.config.test_effects import check_free
from tests.config.test_needs import check_has_no_effect

NAMES = test_configs.names("mpn")
PAPER, REPRODUCTION = (
    "Seidenschwarz et al., ICML 2021",
    "[Re] Learning Intra-Batch Connections, MLRC",
)
ALONE = "method.losses=auxiliary"


def test_every_configuration_and_variant_resolves_without_a_warning() -> None:
    assert NAMES == ["cub_mpn", "cars_mpn", "sop_mpn", "inshop_mpn"]
    test_configs.check_resolve_without_a_warning("mpn", 12)


def test_settings() -> None:
    """The authors' configuration files."""
    keys = (
        "train.groups.mpn.learning_rate",
        "train.groups.mpn.weight_decay",
        "data.batch_size",
        "method.temperature",
        "method.layers",
        "method.heads",
        "train.epochs",
        "train.milestones",
    )
    expected: dict[str, tuple[Any, ...]] = {
        "cub_mpn": (0.0001563663718906821, 6.059722614369727e-06, 54, 0.2, 1, 2, 70, [30]),
        "cars_mpn": (
            0.00036683239911604993,
            2.551918610962277e-09,
            70,
            0.1111111111111,
            2,
            8,
            70,
            [30],
        ),
        "sop_mpn": (
            0.0002472471515853406,
            2.7650277063275255e-13,
            90,
            0.6046908988578005,
            1,
            8,
            70,
            [30],
        ),
        "inshop_mpn": (
            0.00011265974954242144,
            1.0554824926510768e-07,
            56,
            0.18591347176280537,
            1,
            4,
            70,
            [30],
        ),
    }
    test_configs.check_settings(keys, expected)


@pytest.mark.parametrize("name", NAMES)
def test_variants_and_protocols(name: str) -> None:
    test_configs.check_variants_and_protocols(name, reloaded=(30, 50))


@pytest.mark.slow
def test_variants_build() -> None:
    test_configs.check_variants_build(
        NAMES, lambda method: {"mpn"} if method.losses == "auxiliary" else set()
    )


def test_every_configuration_fits_its_weights() -> None:
    test_configs.check_fit_their_weights("mpn", {"resnet50"})


@pytest.mark.parametrize(
    ("of", "source", "paper", "printed"),
    [
        ("cub_mpn", "paper", PAPER, {"recall@8": "92.7", "nmi": "74.0"}),
        ("cars_mpn", "authors' weights", REPRODUCTION, {"recall@2": "92.7", "nmi": "70.9"}),
        ("mpn:ensembles-inshop/5 networks", "paper", PAPER, {"recall@1": "93.4"}),
    ],
)
def test_published_numbers_as_printed(
    of: str, source: str, paper: str, printed: dict[str, str]
) -> None:
    test_configs.check_printed(of, source, paper, printed)


def test_published_results_beside_runs() -> None:
    """Beside a run is the result of its own protocol, or else what differs is said."""
    assert published.beside_runs("cub_mpn")["clean"]["paper"] == {
        "recall@1": 0.671,
        "recall@1_stderr": 0.0069,
    }
    assert published.beside_runs("cub_mpn")["paper"]["paper"]["recall@1"] == 0.703
    assert published.beside_runs("cub_baseline")["clean"].keys() == {
        "paper (selected on test)"
    }  # quoted by the paper
    assert published.beside_runs("cub_mpn:refined")["paper"].keys() == {
        "paper (after refinement, reciprocal)"
    }


@pytest.mark.parametrize(
    "case",
    [
        "cub_mpn evaluation.refine=reciprocal evaluation.refine_min_samples=3",
        "cub_mpn method.k=10",
        "cub_mpn method.k_r=3",
        *(
            f"cub_mpn {ALONE} method.{o}"
            for o in ("layers=3", "heads=8", "concatenate=true", "dropout=0.5")
        ),
    ],
)
def test_options_without_effect(case: str) -> None:
    check_has_no_effect(case)


def test_a_run_is_continued_with_other_values_of_these_options_only() -> None:
    check_free("cub_mpn", "last", {"k", "k_r"})
    check_free("cub_mpn", "test", {"k", "k_r"})
