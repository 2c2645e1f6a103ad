"""DiVA as its authors' commands have it (github.com/Confusezius/ECCV2020_DiVA_MultiFeature_DML).

Variants: `bn_inception`, the other backbone (its batch norm not frozen); `triplet`, the triplet loss in place of the
margin loss in the tasks that rank, for which no other values were published; `bn_inception-triplet`.

The code differs from the paper where both say something: 350 epochs (150 on Stanford Online Products) instead of 150,
weight decay 4e-4 instead of 5e-4, temperature 0.01 instead of 0.1, crops of 8 % or more of the image instead of 224
pixels of 256. The authors try several weights of the embeddings on the test set; here they are fixed, the auxiliary
ones counting double on CUB and Cars196, as the paper says. Others are set by `--config.method.ensemble`.
"""

from ml_collections import ConfigDict

from configs.recipes.published import Reported, experiment
from dml_jax.backbones import bn_inception, resnet
from dml_jax.config import Group, Train
from dml_jax.methods import diva

# The weights' own constants, 128, 117, 104 and 1, as the code rounds them on the scale of 0 to 1.
CAFFE = resnet.Pixels(mean=(0.4078, 0.4588, 0.502), std=(0.0039, 0.0039, 0.0039), order="bgr")


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
    emphasis: float,
) -> ConfigDict:
    """DiVA on a data set.

    Args:
      dataset, variant, reported: see `experiment`.
      rho: weight of every decorrelation.
      alpha: weight of every auxiliary loss.
      milestone: epoch after which all learning rates are multiplied by `gamma`.
      epochs: length.
      queue_batches: length of DaNCE's queue.
      emphasis: weight of an auxiliary embedding at test time beside the discriminative one's.
    """
    inception = "bn_inception" in variant
    config = experiment(
        dataset,
        variant,
        reported,
        backbone=bn_inception.Config(pretrained="weights/bn_inception", pixels=CAFFE)
        if inception
        else resnet.Config(pretrained="weights/resnet50", freeze_bn=True),
        method=diva.Config(
            base="triplet" if "triplet" in variant else "margin",
            alpha_selfsimilarity=alpha,
            alpha_shared=alpha,
            alpha_intra=alpha,
            rho=(rho,),
            temperature=0.01,
            queue_batches=queue_batches,
            ensemble=(1.0, emphasis, emphasis, emphasis),
        ),
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
    config.data.update(sampler="diva", batch_size=112, images_per_class=2, image_size=227 if inception else 224)
    return config
