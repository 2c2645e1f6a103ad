"""CRT's published results beside baselines, and the option that acts at test time."""

from dataclasses import fields

from configs import published
from dml_jax.config.fields import Effect, effect
from dml_jax.methods import crt


def test_published_results_beside_baselines() -> None:
    other = "paper (227 x 227 pixels, another recipe; selection not stated)"
    assert published.beside_runs("cub_baseline:multi_similarity")["paper"].keys() == {other}


def test_the_branch_that_is_tested_may_be_chosen_later() -> None:
    """It changes the embedding of a trained model, and is the only option that does."""
    effects = {option.name: effect(crt.Config, option.name) for option in fields(crt.Config)}
    assert [name for name, found in effects.items() if found] == ["tested_branch"]
    assert effects["tested_branch"] is Effect.EMBEDDING
