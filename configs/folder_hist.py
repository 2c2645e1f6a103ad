"""HIST on your own image folders, with the data, network and variant `small` of
`folder_baseline.py`.

    python -m dml_jax.main --config=configs/folder_hist.py
"""

from functools import partial

from configs.base import Variants, experiment
from configs.folder_baseline import BACKBONE, DATA, EVALUATION, SMALL_BACKBONE, SMALL_DATA
from dml_jax.config import Group, Train
from dml_jax.methods import hist

SMALL = {
    "data": SMALL_DATA,
    "backbone": SMALL_BACKBONE,
    "method.embedding_dim": 64,
    "method.hidden_dim": 64,
    "method.tau": 16.0,
    "train.groups": {
        "backbone": Group(1e-3, weight_decay=1e-4),
        "embedding": Group(1e-3, weight_decay=1e-4),
        "distributions": Group(1e-1, weight_decay=1e-4),
        "hgnn": Group(5e-3, weight_decay=1e-4),
    },
    "train.warmup_epochs": 0,
}
VARIANTS: Variants = {"small": SMALL}
get_config = partial(
    experiment,
    "folder_hist",
    variants=VARIANTS,
    data=DATA,
    backbone=BACKBONE,
    method=hist.Config(embedding_dim=512, hidden_dim=512, tau=32.0, alpha=1.0),
    train=Train(
        groups={
            "backbone": Group(1e-4, weight_decay=1e-4, warmup="freeze"),
            "embedding": Group(1e-4, weight_decay=1e-4),
            "distributions": Group(1e-1, weight_decay=1e-4),
            "hgnn": Group(1e-3, weight_decay=1e-4),
        },
        epochs=20,
        warmup_epochs=1,
        schedule="cosine",
    ),
    evaluation=EVALUATION,
)
