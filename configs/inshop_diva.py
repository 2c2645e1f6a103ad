"""DiVA on In-Shop Clothes: ResNet-50, four embeddings of 128 (the method of Milbich, Roth et al., ECCV 2020).

    python -m dml_jax.main --config=configs/inshop_diva.py                      clean protocol
    python -m dml_jax.main --config=configs/inshop_diva.py --protocol=paper     the authors' protocol

No results or settings are published for this data set, which the authors' code does not support. The settings are those
of Stanford Online Products, which also has thousands of classes with few images each. Cost: not published.
"""

from ml_collections import ConfigDict

from configs.base import experiment
from configs.recipes import diva
from dml_jax.config import Data, Evaluation, Train
from dml_jax.methods.diva import Config

PAPER_PROTOCOL = diva.MANY_CLASSES


def get_config() -> ConfigDict:
    return experiment(
        "inshop_diva",
        data=Data(
            name="inshop", path="data/inshop", sampler="diva", batch_size=112, images_per_class=2,
            crop="random_resized", image_size=224, resize=256, flip=0.5,
        ),
        backbone=diva.RESNET_50,
        method=Config(
            embedding_dim=128,
            base="margin",
            alpha_selfsimilarity=0.2, alpha_shared=0.2, alpha_intra=0.2,
            rho=(150.0,),
            ensemble=(1.0, 1.0, 1.0, 1.0),
            queue_batches=70,
            temperature=0.01,
        ),
        train=Train(
            groups=diva.GROUPS,  # 1e-5 for the network
            optimizer="adam",
            epochs=150,
            schedule="step", milestones=(70,), gamma=0.3,
            checkpoint_every=1000,
        ),
        evaluation=Evaluation(ks=(1, 10, 20, 30, 40), cluster=False),
    )  # fmt: skip
