"""HIST on the built-in handwritten digits: trained on 0-4, evaluated on 5-9.

No paper reports results on this data set. Raw pixels reach a Recall@1 of about 0.53.

    python -m dml_jax.main --config=configs/digits_hist.py
"""

from functools import partial
from typing import Any

from configs.base import experiment
from dml_jax.backbones import resnet
from dml_jax.config import Data, Evaluation, Group, Train
from dml_jax.methods import hist

SECTIONS: dict[str, Any] = {
    "data": Data(name="digits", batch_size=64, images_per_class=4, threads=1),  # more would wait for Python's lock
    "backbone": resnet.Config(block="basic", depths=(1, 1, 1), widths=(16, 32, 64), stem="small"),
    "evaluation": Evaluation(controls=True),
}
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
    **SECTIONS,
)
