"""Losses of the literature on the built-in digits; except for the method, the same experiment as `digits_hist.py`.

    python -m dml_jax.main --config=configs/digits_baseline.py                  normalised softmax
    python -m dml_jax.main --config=configs/digits_baseline.py:triplet-memory

For the variants see configs/recipes/small_baseline.py.
"""

from ml_collections import ConfigDict

from configs import digits_hist
from configs.recipes import small_baseline

VARIANTS = small_baseline.VARIANTS


def get_config(variant: str = "") -> ConfigDict:
    return small_baseline.recipe(digits_hist.get_config(), "digits_baseline", variant)
