"""The experiment of the method: run as --config=tests/plugins/experiment.py."""

from configs.base import experiment
from dml_jax.backbones import resnet
from dml_jax.config import Data, Evaluation, Group, Train
from tests.plugins import method


def get_config():
    return experiment(
        "experiment",
        data=Data(name="digits", batch_size=64, images_per_class=4),
        backbone=resnet.Config(block="basic", depths=(1, 1, 1), widths=(16, 32, 64), stem="small"),
        method=method.Config(embedding_dim=64),
        train=Train(
            groups={name: Group(1e-3) for name in method.GROUPS}, steps=300, schedule="cosine"
        ),
        evaluation=Evaluation(controls=True),
    )
