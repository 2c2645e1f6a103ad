"""DiVA with the settings of its authors' commands (github.com/Confusezius/ECCV2020_DiVA_MultiFeature_DML).

Variants: `bn_inception`, the other backbone (batch norm not frozen); `triplet`, the triplet loss instead of the margin
loss in the ranking tasks, with otherwise the same settings, since no others are published; `bn_inception-triplet`; and
`bn_inception-` followed by a bar of Figure 4. The heights of the bars are not printed: all are below DaNCE's, and plain
NCE's is below the baseline's.

    discriminative   the baseline: the discriminative task alone
    dance            discriminative and DaNCE; the following five replace DaNCE by
    nce                plain NCE
    instance           instance discrimination with a memory of all images, as the paper cites it
    spread             instance discrimination with the second views of the batch, as in the authors' code
    rotnet             classification of rotations
    deepcluster        classification of clusters
    ensemble         four discriminative tasks, decorrelated

The concatenated embedding of each bar has 512 dimensions, like DiVA's. The weight of a self-supervised loss is 1,
except for DaNCE and NCE, which have DiVA's; pairs of tasks are not decorrelated. This follows the authors' code where
it specifies these settings.

The code deviates from the paper, and is followed here: 350 epochs (150 on Stanford Online Products) instead of 150,
weight decay 4e-4 instead of 5e-4, temperature 0.01 instead of 0.1, crops of at least 8 % of the area instead of 224
pixels of 256. The authors try several test-time weights of the embeddings on the test set; here they are fixed, with
twice the weight for the auxiliary embeddings on CUB and Cars196 as stated in the paper (`--config.method.ensemble` sets
others).
"""

from dataclasses import asdict, replace
from typing import Any

from ml_collections import ConfigDict

from configs.recipes.published import Reported, experiment, without_protocol
from dml_jax.config import Group, Train
from dml_jax.options.backbones import bn_inception, resnet
from dml_jax.options.methods import diva

# The constants of these weights, 128, 117, 104 and 1 of 255, rounded as in the authors' code.
CAFFE = resnet.Pixels(mean=(0.4078, 0.4588, 0.502), std=(0.0039, 0.0039, 0.0039), order="bgr")


FIGURE_4 = ("discriminative", "dance", "nce", "instance", "spread", "rotnet", "deepcluster", "ensemble")
# The rows of these bars in a table REPORTED; their values are not printed.
FIGURE_4_ROWS: dict[str, tuple[float | None, ...]] = dict.fromkeys((f"bn_inception-{bar}" for bar in FIGURE_4), ())


def figure_4(method: diva.Config, bar: str) -> diva.Config:
    """The options of a bar of Figure 4; the concatenated embedding keeps its size.

    Args:
      method: options of DiVA with all four tasks.
      bar: one of FIGURE_4.
    """
    whole, equal = 4 * method.embedding_dim, (1.0, 1.0, 1.0, 1.0)
    if bar == "ensemble":
        return replace(
            method, learners="discriminative", ensemble=equal,
            alpha_selfsimilarity=1.0, alpha_shared=1.0, alpha_intra=1.0,
        )  # fmt: skip
    if bar == "discriminative":
        return replace(method, tasks=("discriminative",), embedding_dim=whole, ensemble=equal, directions=())
    pair = replace(method, tasks=("discriminative", "selfsimilarity"), ensemble=equal, directions=())
    task: dict[str, Any] = {"selfsimilarity": bar, "alpha_selfsimilarity": 1.0}
    match bar:
        case "dance" | "nce":
            return replace(pair, embedding_dim=whole // 2, dance=method.dance if bar == "dance" else "off")
        case "instance" | "spread":
            return replace(pair, embedding_dim=whole // 2, **task)
        case "rotnet" | "deepcluster":  # no embedding of their own
            return replace(pair, embedding_dim=whole, **task)
        case _:
            raise ValueError(f"unknown bar {bar!r}")


def add_classifier_group(config: ConfigDict, learning_rate: float) -> None:
    """Adds the parameter group of the classifier if the task is RotNet or DeepCluster."""
    if config.method.selfsimilarity in ("rotnet", "deepcluster"):
        config.train.groups.classifier = asdict(Group(learning_rate))


def recipe(
    dataset: str,
    variant: str,
    reported: Reported,
    *,
    rho: float,
    alpha: float,
    milestone: int,
    gamma: float,
    epochs: int,
    queue_batches: int,
    auxiliary_weight: float,
) -> ConfigDict:
    """DiVA on a data set.

    Args:
      dataset, variant, reported: see `experiment`.
      rho: weight of every decorrelation term.
      alpha: weight of every auxiliary loss.
      milestone: epoch after which all learning rates are multiplied by `gamma`.
      epochs: length of the training.
      queue_batches: length of DaNCE's queue in batches.
      auxiliary_weight: test-time weight of each auxiliary embedding; that of the discriminative embedding is 1.
    """
    inception = "bn_inception" in variant
    method = diva.Config(
        base="triplet" if "triplet" in variant else "margin",
        alpha_selfsimilarity=alpha,
        alpha_shared=alpha,
        alpha_intra=alpha,
        rho=(rho,),
        temperature=0.01,
        queue_batches=queue_batches,
        ensemble=(1.0, auxiliary_weight, auxiliary_weight, auxiliary_weight),
    )
    bar = without_protocol(variant).split("-")[-1]
    config = experiment(
        dataset,
        variant,
        reported,
        backbone=bn_inception.Config(pretrained="weights/bn_inception", pixels=CAFFE)
        if inception
        else resnet.Config(pretrained="weights/resnet50", freeze_bn=True),
        method=figure_4(method, bar) if bar in FIGURE_4 else method,
        train=Train(
            groups={
                "model": Group(1e-5, weight_decay=4e-4),
                "beta": Group(5e-4),
                "psi": Group(1e-5),
                "temperature": Group(5e-4),
            },
            epochs=epochs,
            schedule="step",
            milestones=(milestone,),
            gamma=gamma,
        ),
    )
    add_classifier_group(config, 1e-4)
    config.data.update(sampler="diva", batch_size=112, images_per_class=2, image_size=227 if inception else 224)
    return config
