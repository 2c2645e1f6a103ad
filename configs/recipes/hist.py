"""HIST with the settings of its authors' commands (github.com/ljin0429/HIST) and of the tables of its reproduction.

Variants: `retuned`, the values found by the reproduction's search (Yuan et al., MLRC 2022, Tables 2, 8 and 9);
`bn_inception`, the other backbone, for which the authors published only tau, alpha and lambda_s, and the other settings
are the reproduction's; `bn_inception-retuned`. `cars_hist.py` adds the reproduction's ablations.

One warm-up epoch, not included in `epochs`, trains everything except the backbone. Freezing batch norm freezes its
running statistics; its scales and shifts are trained after the warm-up, as in the authors' code. The authors' code
averages the entropies in NMI geometrically, and so does the paper protocol.
"""

from ml_collections import ConfigDict

from configs.recipes.published import Reported, experiment
from dml_jax.backbones import bn_inception, resnet
from dml_jax.config import Group, Train
from dml_jax.methods import hist


def recipe(
    dataset: str,
    variant: str,
    reported: Reported,
    *,
    tau: float,
    alpha: float,
    lambda_s: float,
    learning_rate: float,
    distributions: float,
    hgnn: float,
    weight_decay: float,
    epochs: int,
    halve_every: int,
    freeze_bn: bool = True,
) -> ConfigDict:
    """HIST on a data set.

    Args:
      dataset, variant, reported: see `experiment`.
      tau, alpha, lambda_s: as in `hist.Config`.
      learning_rate: of the backbone and the embedding layer.
      distributions, hgnn: learning rates of the class distributions and of the hypergraph network.
      weight_decay: of all parameters.
      epochs: number of epochs after the warm-up.
      halve_every: number of epochs between halvings of all learning rates.
      freeze_bn: whether the running statistics of the backbone's batch norm are frozen.
    """
    inception = "bn_inception" in variant
    config = experiment(
        dataset,
        variant,
        reported,
        backbone=bn_inception.Config(pretrained="weights/bn_inception", freeze_bn=freeze_bn, bn_momentum=0.9)
        if inception
        else resnet.Config(pretrained="weights/resnet50", freeze_bn=freeze_bn),
        method=hist.Config(tau=tau, alpha=alpha, lambda_s=lambda_s, drop_underflow=True),
        train=Train(
            groups={
                "backbone": Group(learning_rate, weight_decay, warmup="freeze"),
                "embedding": Group(learning_rate, weight_decay),
                "distributions": Group(distributions, weight_decay),
                "hgnn": Group(hgnn, weight_decay),
            },
            epochs=epochs,
            warmup_epochs=1,
            optimizer="adamw" if inception else "adam",
            schedule="step",
            milestones=tuple(range(halve_every, epochs, halve_every)),
            gamma=0.5,
        ),
    )
    config.data.update(sampler="shuffled", batch_size=32, image_size=224)
    if config.evaluation.protocol == "paper":
        config.evaluation.nmi_average = "geometric"
    return config
