"""HIST on the built-in handwritten digits: trained on 0-4, evaluated on 5-9."""

from functools import partial

from configs.base import experiment
from configs.recipes import small
from dml_jax.config import Group, Train
from dml_jax.methods import hist

get_config = partial(
    experiment,
    "digits_hist",
    method=hist.Config(embedding_dim=64, hidden_dim=64, tau=16.0, alpha=1.0),
    train=Train(
        groups={
            "backbone": Group(1e-3, weight_decay=1e-4),
            "embedding": Group(1e-3, weight_decay=1e-4),
            "distributions": Group(1e-1, weight_decay=1e-4),
            "hgnn": Group(5e-3, weight_decay=1e-4),
        },
        steps=1200,
        schedule="cosine",
        evaluate_every=300,
    ),
    **small.DIGITS,
)
