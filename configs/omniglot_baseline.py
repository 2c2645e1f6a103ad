"""Normalised softmax on Omniglot, the control beside `omniglot_hist.py`: everything but the method is the same.

python -m dml_jax.main --config=configs/omniglot_baseline.py
"""

from dataclasses import asdict

from ml_collections import ConfigDict

from configs import omniglot_hist
from dml_jax.config import Group, Train
from dml_jax.methods import baseline


def get_config() -> ConfigDict:
    config = omniglot_hist.get_config()
    config.name = "omniglot_baseline"
    config.method = asdict(baseline.Config(embedding_dim=64))
    groups = {name: Group(1e-3, weight_decay=1e-4) for name in ("backbone", "embedding")}
    groups["loss"] = Group(1e-2, weight_decay=1e-4)
    config.train = asdict(Train(groups=groups, steps=1200, schedule="cosine", evaluate_every=300))
    return config
