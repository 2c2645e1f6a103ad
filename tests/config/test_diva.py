"""DiVA's configurations, with the values of the authors' commands and the numbers of the paper."""

from typing import Any

import pytest

from tests import test_configs
from tests.config.test_effects import check_free
from tests.config.test_needs import check_has_no_effect

NAMES = test_configs.names("diva")
PAPER = "Milbich et al., ECCV 2020"


def test_every_configuration_and_variant_resolves_without_a_warning() -> None:
    assert NAMES == ["cub_diva", "cars_diva", "sop_diva", "inshop_diva"]
    test_configs.check_resolve_without_a_warning("diva", 18)


def test_settings() -> None:
    """The authors' commands."""
    keys = (
        "method.rho",
        "method.alpha_intra",
        "train.epochs",
        "train.milestones",
        "train.gamma",
        "method.queue_batches",
    )
    expected: dict[str, tuple[Any, ...]] = {
        "cub_diva": ([1500.0], 0.3, 350, [55], 0.2, 30),
        "cub_diva:bn_inception": ([300.0], 0.1, 350, [70], 0.3, 30),
        "cars_diva": ([100.0], 0.15, 350, [70], 0.2, 30),
        "sop_diva": ([150.0], 0.2, 150, [70], 0.3, 70),
        "cars_diva:bn_inception": ([100.0], 0.15, 350, [160], 0.3, 30),
        "sop_diva:bn_inception": ([150.0], 0.1, 150, [80], 0.3, 70),
    }
    test_configs.check_settings(keys, expected)


@pytest.mark.parametrize("name", NAMES)
def test_variants_and_protocols(name: str) -> None:
    """The authors cluster with faiss."""
    test_configs.check_variants_and_protocols(name, k_means=("random", 1, 20))


@pytest.mark.slow
def test_variants_build() -> None:
    test_configs.check_variants_build(
        NAMES, lambda method: {"beta"} if method.base == "triplet" else set()
    )


def test_every_configuration_fits_its_weights() -> None:
    test_configs.check_fit_their_weights("diva", {"resnet50", "bn_inception"})


@pytest.mark.parametrize(
    ("of", "printed"),
    [
        ("cub_diva:bn_inception", {"recall@1": "66.8", "nmi": "70.0"}),
        ("diva:separate-cub/separate models", {"recall@1": "48.7"}),
    ],
)
def test_published_numbers_as_printed(of: str, printed: dict[str, str]) -> None:
    test_configs.check_printed(of, "paper", PAPER, printed)


@pytest.mark.parametrize(
    "case",
    [
        *(
            f"cub_diva method.tasks=discriminative method.{o}"
            for o in ("alpha_selfsimilarity=0.7", "alpha_shared=0.7", "alpha_intra=0.7", "shared=standard", "dance=off",  # noqa: E501
                      "selfsimilarity=spread", "temperature=0.5", "queue_batches=7",
                      "momentum=0.5", "rho=7,", "psi_dim=7")
        ),
        "cub_diva method.base=triplet method.beta=1",
    ],
)  # fmt: skip
def test_options_without_effect(case: str) -> None:
    check_has_no_effect(case)


def test_a_run_is_continued_with_other_values_of_these_options_only() -> None:
    check_free("cub_diva", "last", {"ensemble"})
    check_free("cub_diva", "test", set())
