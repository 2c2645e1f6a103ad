"""Losses of the literature on Omniglot; except for the method, the same experiment as `omniglot_hist.py`.

    python -m dml_jax.main --config=configs/omniglot_baseline.py                  normalised softmax
    python -m dml_jax.main --config=configs/omniglot_baseline.py:triplet-memory

For the variants see configs/recipes/small_baseline.py.
"""

from ml_collections import ConfigDict

from configs import omniglot_hist
from configs.recipes import small_baseline

VARIANTS = small_baseline.VARIANTS


def get_config(variant: str = "") -> ConfigDict:
    return small_baseline.recipe(omniglot_hist.get_config(), "omniglot_baseline", variant)
