"""Losses from the literature on the built-in digits; the same experiment as `digits_hist.py` except for the method.

    python -m dml_jax.main --config=configs/digits_baseline.py                  normalised softmax
    python -m dml_jax.main --config=configs/digits_baseline.py:triplet-memory

For the variants, see configs/recipes/small_baseline.py.
"""

from configs import digits_hist
from configs.recipes import small_baseline

VARIANTS, get_config = small_baseline.on(digits_hist.SECTIONS, learning_rate=1e-3, evaluate_every=300)
