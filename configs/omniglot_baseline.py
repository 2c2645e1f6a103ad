"""Losses from the literature on Omniglot; the same experiment as `omniglot_hist.py` except for the method.

    python -m dml_jax.main --config=configs/omniglot_baseline.py                  normalised softmax
    python -m dml_jax.main --config=configs/omniglot_baseline.py:triplet-memory

For the variants, see configs/recipes/small_baseline.py.
"""

from configs import omniglot_hist
from configs.recipes import small_baseline

VARIANTS, get_config = small_baseline.on(omniglot_hist.SECTIONS, learning_rate=4e-3, evaluate_every=600)
