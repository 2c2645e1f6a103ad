"""Losses from the literature on Omniglot, with a small network.

    python -m dml_jax.main --config=configs/omniglot_baseline.py                  normalised softmax
    python -m dml_jax.main --config=configs/omniglot_baseline.py:triplet-memory

For the variants, see configs/recipes/small_baseline.py.
"""

from configs.recipes import small, small_baseline

VARIANTS, get_config = small_baseline.on(small.OMNIGLOT, rate=4e-3, every=600)
