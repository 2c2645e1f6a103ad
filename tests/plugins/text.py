"""The encoder trained on the sentences. Run as --config=tests/plugins/text.py."""

from configs.base import experiment
from dml_jax.config import Data, Evaluation, Group, Train
from dml_jax.methods import baseline
from tests.plugins import text_encoder


def get_config():
    return experiment(
        "text",
        data=Data(name="tests.plugins.sentences", batch_size=64, images_per_class=4),
        backbone=text_encoder.Config(),
        method=baseline.make_config("sup_con", embedding_dim=64, pooling="max"),
        train=Train({name: Group(3e-3) for name in baseline.GROUPS}, steps=300),
        evaluation=Evaluation(cluster=False),
    )
