"""Losses from the literature on the built-in digits; the same experiment as `digits_hist.py` except for the method.

    python -m dml_jax.main --config=configs/digits_baseline.py                  normalised softmax
    python -m dml_jax.main --config=configs/digits_baseline.py:triplet-memory

For the variants, see configs/recipes/small_baseline.py.
"""

from ml_collections import ConfigDict

from configs.base import experiment
from configs.digits_hist import BACKBONE, DATA, EVALUATION
from configs.recipes import small_baseline

VARIANTS = small_baseline.VARIANTS


def get_config(variant: str = "") -> ConfigDict:
    sections = small_baseline.recipe(variant, embedding_dim=64, learning_rate=1e-3, evaluate_every=300)
    return experiment("digits_baseline", variant, data=DATA, backbone=BACKBONE, evaluation=EVALUATION, **sections)
