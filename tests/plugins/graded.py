"""A graded experiment: `data.relation` gives the pairs of the loss and the memory, the classes of a
batch, and the grades of the evaluation. Run as --config=tests/plugins/graded.py."""

from configs.base import experiment
from dml_jax.backbones import resnet
from dml_jax.config import Data, Evaluation, Group, Train
from dml_jax.methods import baseline


def get_config():
    return experiment(
        "graded",
        data=Data(
            name="tests.plugins.tagged",
            relation="tests.plugins.relation.shared_tags",
            sampler="related",
            batch_size=32,
            images_per_class=4,
        ),
        backbone=resnet.Config(block="basic", depths=(1, 1), widths=(16, 32), stem="small"),
        method=baseline.make_config("sup_con", embedding_dim=32, memory=128),
        train=Train({name: Group(3e-3) for name in baseline.GROUPS}, steps=100),
        evaluation=Evaluation(cluster=False),
    )
