"""HIST on your own image folders, with the data, network and variant `small` of
`folder_baseline.py`.

    python -m dml_jax.main --config=configs/folder_hist.py
"""

from functools import partial

from configs.base import Variants, experiment
from configs.cars_hist import groups
from configs.folder_baseline import BACKBONE, DATA, EVALUATION, SMALL_BACKBONE, SMALL_DATA
from dml_jax.config import Train
from dml_jax.methods import hist

VARIANTS: Variants = {
    "small": {
        "data": SMALL_DATA,
        "backbone": SMALL_BACKBONE,
        "method.embedding_dim": 64,
        "method.hidden_dim": 64,
        "method.tau": 16.0,
        "train.groups": groups(1e-3, 1e-4, 1e-1, 5e-3, "train"),
        "train.warmup_epochs": 0,
    }
}
get_config = partial(
    experiment,
    "folder_hist",
    variants=VARIANTS,
    data=DATA,
    backbone=BACKBONE,
    method=hist.Config(embedding_dim=512, hidden_dim=512, tau=32.0, alpha=1.0),
    train=Train(
        groups=groups(1e-4, 1e-4, 1e-1, 1e-3), epochs=20, warmup_epochs=1, schedule="cosine"
    ),
    evaluation=EVALUATION,
)
