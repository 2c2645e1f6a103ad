"""HIST on the built-in handwritten digits: trained on 0-4, evaluated on 5-9."""

from functools import partial

from configs.base import experiment
from configs.cars_hist import groups
from configs.recipes import small
from dml_jax.config import Train
from dml_jax.methods import hist

get_config = partial(
    experiment,
    "digits_hist",
    method=hist.Config(embedding_dim=64, hidden_dim=64, tau=16.0, alpha=1.0),
    train=Train(
        groups=groups(1e-3, 1e-4, 1e-1, 5e-3, "train"),
        steps=1200,
        schedule="cosine",
        evaluate_every=300,
    ),
    **small.DIGITS,
)
