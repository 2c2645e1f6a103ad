"""Small experiments on the built-in digits, for tests of the training."""

from dataclasses import asdict
from typing import Any

from dml_jax import config as configs
from dml_jax.backbones import resnet
from dml_jax.config import Config, Group, Train
from dml_jax.methods import hist


def values(**train: Any) -> dict[str, Any]:
    """A configuration that trains HIST on digits with a few thousand parameters."""
    groups = {group: Group(1e-3, weight_decay=1e-4) for group in hist.GROUPS}
    return {
        "name": "small",
        "data": {"name": "digits", "batch_size": 16, "images_per_class": 4, "threads": 1},
        "backbone": asdict(resnet.Config(block="basic", depths=(1,), widths=(4,), stem="small")),
        "method": asdict(hist.Config(embedding_dim=8, hidden_dim=8, tau=16.0)),
        "train": asdict(Train(groups=groups, **train)),
        "evaluation": {"cluster": False, "ks": (1,), "batch_size": 448},
    }


def small(**train: Any) -> Config:
    """The same, resolved."""
    return configs.resolve(values(**train))
