"""The Group Loss with the settings of its authors' code (github.com/dvl-tum/group_loss), unrounded.

The embedding is BN-Inception's pooled features, 1,024-d. After 30 and 50 of the 70 epochs the code continues from the
epoch that is best on the test set so far; the learning rate is decayed only at the first of the two. The clean protocol
decays it but does not go back.

Differences: the authors start from a network fine-tuned on the training classes for 10 epochs, here training starts
from the ImageNet weights (`--config.init_from` starts from another run). Their sampler repeats the images of small
classes until all classes have the same size, which is not done here.
"""

from ml_collections import ConfigDict

from configs.recipes.published import Reported, experiment
from dml_jax.backbones import bn_inception
from dml_jax.config import Group, Train
from dml_jax.methods import group_loss


def recipe(
    dataset: str,
    variant: str,
    reported: Reported,
    *,
    learning_rate: float,
    weight_decay: float,
    classes: int,
    images: int,
    anchors: int,
    temperature: float,
) -> ConfigDict:
    """The Group Loss on a data set.

    Args:
      dataset, variant, reported: see `experiment`.
      learning_rate, weight_decay: of all parameters.
      classes, images: classes per batch, and images per class.
      anchors, temperature: as in `group_loss.Config`.
    """
    config = experiment(
        dataset,
        variant,
        reported,
        backbone=bn_inception.Config(pretrained="weights/bn_inception", bn_momentum=0.9),
        method=group_loss.Config(embedding_dim=0, pooling="avg", anchors=anchors, temperature=temperature),
        train=Train(
            groups=dict.fromkeys(group_loss.GROUPS, Group(learning_rate, weight_decay)),
            epochs=70,
            optimizer="radam",
            schedule="step",
            milestones=(30,),
            gamma=0.1,
        ),
    )
    config.data.update(sampler="mpn", batch_size=classes * images, images_per_class=images, image_size=227)
    if config.train.select == "test":
        config.train.reload_best_epochs = (30, 50)
    return config
