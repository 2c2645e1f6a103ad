"""CRT's configurations, with the values and numbers of the paper."""

from dataclasses import fields
from typing import Any

import pytest

from configs import published
from dml_jax.config.fields import Effect, effect
from dml_jax.methods import crt
from tests import test_configs
from tests.config.test_effects import check_free
from tests.config.test_needs import check_has_no_effect

NAMES = test_configs.names("crt")
AVERAGE = "cub_crt method.transform=average"


def test_every_configuration_and_variant_resolves_without_a_warning() -> None:
    assert NAMES == ["cub_crt", "cars_crt", "sop_crt", "inshop_crt"]
    test_configs.check_resolve_without_a_warning("crt", 25)


def test_settings() -> None:
    """Section 4.1."""
    keys = (
        "data.batch_size",
        "method.lambda1",
        "method.embedding_dims",
        "train.groups.prototypes.learning_rate",
    )
    expected: dict[str, tuple[Any, ...]] = {
        "cub_crt": (80, [1.0, 0.1], [128, 1024], 3e-5),
        "cars_crt": (80, [1.0, 0.1], [128, 1024], 3e-5),
        "sop_crt": (180, [1.0, 0.9], [128, 1024], 3e-5),
        "inshop_crt": (180, [1.0, 0.9], [128, 1024], 3e-5),
    }
    test_configs.check_settings(keys, expected)


@pytest.mark.parametrize("name", NAMES)
def test_variants_and_protocols(name: str) -> None:
    test_configs.check_variants_and_protocols(name)


@pytest.mark.slow
def test_variants_build() -> None:
    test_configs.check_variants_build(NAMES)


def test_every_configuration_fits_its_weights() -> None:
    test_configs.check_fit_their_weights(
        "crt", {"deit_small", "googlenet", "mit_b1", "mit_b2", "bn_inception"}
    )


def test_published_numbers_as_printed() -> None:
    printed = {"recall@1": "83.41", "recall@1000": "99.31"}
    test_configs.check_printed("sop_crt", "paper", "Kan et al., NeurIPS 2022", printed)


def test_published_results_beside_baselines() -> None:
    other = "paper (227 x 227 pixels, another recipe; selection not stated)"
    assert published.beside_runs("cub_baseline:multi_similarity")["paper"].keys() == {other}


@pytest.mark.parametrize(
    "case",
    [
        *(
            f"{AVERAGE} method.{o}"
            for o in ("prototypes=8,8", "hidden_dim=8", "gamma=single", "sharing=separate")
        ),
        f"{AVERAGE} method.w_div=2",
        "cub_crt method.lambda2=0 method.consistency=sum",
    ],
)
def test_options_without_effect(case: str) -> None:
    check_has_no_effect(case)


def test_the_branch_that_is_tested_may_be_chosen_later() -> None:
    """It changes the embedding of a trained model, and is the only option that does."""
    effects = {option.name: effect(crt.Config, option.name) for option in fields(crt.Config)}
    assert [name for name, found in effects.items() if found] == ["tested_branch"]
    assert effects["tested_branch"] is Effect.EMBEDDING


def test_a_run_is_continued_with_other_values_of_these_options_only() -> None:
    check_free("cub_crt", "last", {"tested_branch"})
    check_free("cub_crt", "test", set())
