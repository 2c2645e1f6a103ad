"""Losses from the literature on the built-in digits, with a small network.

    python -m dml_jax.main --config=configs/digits_baseline.py                  normalised softmax
    python -m dml_jax.main --config=configs/digits_baseline.py:triplet-memory

For the variants, see configs/recipes/small_baseline.py.
"""

from configs.recipes import small, small_baseline

VARIANTS, get_config = small_baseline.on(small.DIGITS, rate=1e-3, every=300)
