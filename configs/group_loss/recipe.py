"""The Group Loss (Elezi, Vascon, Torcinovich, Pelillo, Leal-Taixé, ECCV 2020).

The settings follow its authors' code (github.com/dvl-tum/group_loss), unrounded; the embedding is
BN-Inception's pooled features. There are two differences. The authors start from a network that was
fine-tuned on the training classes for 10 epochs; here, training starts from the ImageNet weights
(`--config.init_from` starts from another run). The authors' sampler repeats the images of small
classes until all classes have the same size, which is not done here.
"""

from configs import base
from configs.recipes import resnet_227
from dml_jax.backbones import bn_inception
from dml_jax.methods import group_loss

METHODS = {
    "cub": group_loss.Config(embedding_dim=0, pooling="avg", anchors=2, temperature=24.0),
    "cars": group_loss.Config(embedding_dim=0, pooling="avg", anchors=3, temperature=79.0),
}
TRAINING = {
    "cub": resnet_227.training(0.0001563663718906821, 6.059722614369727e-06, 54, 9),
    "cars": resnet_227.training(0.0002, 4.863656728256105e-07, 35, 7),
}


def on(dataset: str) -> base.Contents:
    """The contents of the file of a data set."""
    network = bn_inception.Config(pretrained="weights/bn_inception", bn_momentum=0.9)
    return resnet_227.on(
        dataset, METHODS[dataset], {}, backbone=network, erasing=0.0, **TRAINING[dataset]
    )
