"""DiVA with the settings of its authors' commands (github.com/Confusezius/ECCV2020_DiVA_MultiFeature_DML).

Variants: `bn_inception`, the other backbone (batch norm not frozen); `triplet`, the triplet loss instead of the margin
loss in the ranking tasks, with otherwise the same settings, since no others are published; `bn_inception-triplet`; and
`bn_inception-` followed by one of the paper's ablations, each with about 512 dimensions in total:

    Table 1: which tasks are trained beside the discriminative one
    discriminative   none, the baseline of Table 3 and Figure 4
    dance            DaNCE
    shared           shared
    intra            intra-class
    dance_intra, shared_intra, dance_shared, all     two or all of them; `all` is DiVA

    Table 3
    no_decorrelation   DiVA without decorrelation
    separate_discriminative, separate_dance, separate_shared, separate_intra
                       one network per task, 128 dimensions; `dml-jax ensemble` concatenates the four runs

    Figure 4: what replaces DaNCE beside the discriminative task
    nce              plain NCE
    instance         instance discrimination with a memory of all images, as the paper cites it
    spread           instance discrimination with the second views of the batch, as in the authors' code
    rotnet           classification of rotations
    deepcluster      classification of clusters
    ensemble         four discriminative tasks, decorrelated

The heights of the bars of Figure 4 are not printed: all are below DaNCE's, and plain NCE's is below the baseline's. As
stated in the paper, ablations are trained for 150 epochs at a fixed learning rate; no commands are published for them,
so that the other settings are those of `bn_inception`. The weight of a self-supervised loss is 1, except for DaNCE and
NCE beside other tasks, which have DiVA's. As in the authors' code, pairs and triples of tasks are not decorrelated,
except for `dance_shared`, whose two auxiliary embeddings are also decorrelated from each other.

The code deviates from the paper, and is followed here: 350 epochs (150 on Stanford Online Products) instead of 150,
weight decay 4e-4 instead of 5e-4, temperature 0.01 instead of 0.1, crops of at least 8 % of the area instead of 224
pixels of 256, crops of 227 instead of 224 pixels with BN-Inception. The authors try several test-time weights of the
embeddings on the test set; here they are fixed, with twice the weight for the auxiliary embeddings on CUB and Cars196
as stated in the paper (`--config.method.ensemble` sets others).
"""

from dataclasses import asdict, replace
from typing import Any

from ml_collections import ConfigDict

from configs.recipes.published import Reported, experiment, without_protocol
from dml_jax.backbones import bn_inception, resnet
from dml_jax.config import Group, Train
from dml_jax.methods import diva
from dml_jax.methods.diva.options import Task

# The constants of these weights, 128, 117, 104 and 1 of 255, rounded as in the authors' code.
CAFFE = resnet.Pixels(mean=(0.4078, 0.4588, 0.502), std=(0.0039, 0.0039, 0.0039), order="bgr")

TABLE_1: dict[str, tuple[Task, ...]] = {
    "discriminative": ("discriminative",),
    "dance": ("discriminative", "selfsimilarity"),
    "shared": ("discriminative", "shared"),
    "intra": ("discriminative", "intra"),
    "dance_intra": ("discriminative", "selfsimilarity", "intra"),
    "shared_intra": ("discriminative", "shared", "intra"),
    "dance_shared": ("discriminative", "selfsimilarity", "shared"),
    "all": diva.TASKS,
}
SEPARATE: dict[str, Task] = {
    "separate_discriminative": "discriminative",
    "separate_dance": "selfsimilarity",
    "separate_shared": "shared",
    "separate_intra": "intra",
}
FIGURE_4 = ("discriminative", "dance", "nce", "instance", "spread", "rotnet", "deepcluster", "ensemble")
ABLATIONS = tuple(dict.fromkeys((*TABLE_1, "no_decorrelation", *SEPARATE, *FIGURE_4)))


def ablations(printed: Reported) -> dict[str, tuple[float | None, ...]]:
    """The rows of all ablations for a table REPORTED, from those with printed values."""
    assert set(printed) <= set(ABLATIONS)
    return {f"bn_inception-{name}": printed.get(name, ()) for name in ABLATIONS}


def ablation(method: diva.Config, name: str) -> diva.Config:
    """The options of an ablation.

    Args:
      method: options of DiVA with all four tasks; their dimensions are divided among the tasks that remain.
      name: one of ABLATIONS.
    """
    total, equal = 4 * method.embedding_dim, (1.0, 1.0, 1.0, 1.0)
    if name in TABLE_1:
        tasks = TABLE_1[name]
        directions = method.directions if len(tasks) == 4 else ()
        if name == "dance_shared":
            directions = ("selfsimilarity-discriminative", "shared-discriminative", "shared-selfsimilarity")
        ensemble = method.ensemble if len(tasks) > 1 else equal
        return replace(method, tasks=tasks, embedding_dim=total // len(tasks), directions=directions, ensemble=ensemble)
    alone: dict[str, Any] = {"alpha_selfsimilarity": 1.0, "alpha_shared": 1.0, "alpha_intra": 1.0, "ensemble": equal}
    if name in SEPARATE:
        return replace(method, tasks=(SEPARATE[name],), directions=(), **alone)
    pair = replace(method, tasks=TABLE_1["dance"], embedding_dim=total // 2, directions=())
    match name:
        case "no_decorrelation":
            return replace(method, directions=())
        case "ensemble":
            return replace(method, learners="discriminative", **alone)
        case "nce":
            return replace(pair, dance="off")
        case "instance" | "spread":
            return replace(pair, selfsimilarity=name, alpha_selfsimilarity=1.0)
        case "rotnet" | "deepcluster":  # no embedding of their own
            return replace(pair, selfsimilarity=name, alpha_selfsimilarity=1.0, embedding_dim=total, ensemble=equal)
        case _:
            raise ValueError(f"unknown ablation {name!r}")


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
      milestone: epoch after which all learning rates are multiplied by `gamma`, except in ablations.
      epochs: length of the training, except in ablations.
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
    name = without_protocol(variant).split("-")[-1]
    length: dict[str, Any] = {"epochs": epochs, "schedule": "step", "milestones": (milestone,), "gamma": gamma}
    if name in ABLATIONS:
        method, length = ablation(method, name), {"epochs": 150}
    config = experiment(
        dataset,
        variant,
        reported,
        backbone=bn_inception.Config(pretrained="weights/bn_inception", pixels=CAFFE)
        if inception
        else resnet.Config(pretrained="weights/resnet50", freeze_bn=True),
        method=method,
        train=Train(
            groups={
                "model": Group(1e-5, weight_decay=4e-4),
                "beta": Group(5e-4),
                "psi": Group(1e-5),
                "temperature": Group(5e-4),
            },
            **length,
        ),
    )
    add_classifier_group(config, 1e-4)
    config.data.update(sampler="diva", batch_size=112, images_per_class=2, image_size=227 if inception else 224)
    return config
