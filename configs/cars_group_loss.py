"""The Group Loss on Cars196: BN-Inception, 1,024-d (Elezi, Vascon, Torcinovich, Pelillo, Leal-Taixé, ECCV 2020).

Published for the authors' protocol: R@1 85.6, as quoted by Seidenschwarz et al. (ICML 2021), Table 1. Cost: not
published.

The settings follow the authors' code (github.com/dvl-tum/group_loss), unrounded; the embedding is BN-Inception's
pooled features. There are two differences. The authors start from a network that was fine-tuned on the training classes
for 10 epochs; here, training starts from the ImageNet weights (`--config.init_from` starts from another run). The
authors' sampler repeats the images of small classes until all classes have the same size, which is not done here.

Converting BN-Inception's weights needs the extra `torch`.
"""

from ml_collections import ConfigDict

from configs.recipes import mpn
from dml_jax.backbones import bn_inception
from dml_jax.config import Group
from dml_jax.methods import group_loss

PAPER_PROTOCOL = mpn.PAPER_PROTOCOL


def get_config() -> ConfigDict:
    return mpn.config(
        "cars",
        "",
        {},
        sampler="mpn",
        batch_size=35,
        images_per_class=7,
        backbone=bn_inception.Config(pretrained="weights/bn_inception", bn_momentum=0.9),
        method=group_loss.Config(embedding_dim=0, pooling="avg", anchors=3, temperature=79.0),
        groups=dict.fromkeys(group_loss.GROUPS, Group(0.0002, weight_decay=4.863656728256105e-07)),
    )
