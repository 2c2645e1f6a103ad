"""HIST on custom image folders; data and network are those of `folder_baseline.py`, which has the variant `small`, too.

python -m dml_jax.main --config=configs/folder_hist.py
"""

from dataclasses import asdict

from ml_collections import ConfigDict

from configs.folder_baseline import photographs
from dml_jax.config import Group, Train
from dml_jax.methods import hist

VARIANTS = ("small",)


def get_config(variant: str = "") -> ConfigDict:
    config = photographs("folder_hist", variant)
    small = variant == "small"
    dim = 64 if small else 512
    config.method = asdict(hist.Config(embedding_dim=dim, hidden_dim=dim, tau=16.0 if small else 32.0, alpha=1.0))
    rate = 1e-3 if small else 1e-4
    groups = {
        "backbone": Group(rate, weight_decay=1e-4, warmup="train" if small else "freeze"),
        "embedding": Group(rate, weight_decay=1e-4),
        "distributions": Group(1e-1, weight_decay=1e-4),
        "hgnn": Group(5e-3 if small else 1e-3, weight_decay=1e-4),
    }
    warmup = 0 if small else 1
    config.train = asdict(Train(groups=groups, schedule="cosine", epochs=20, warmup_epochs=warmup))
    return config
