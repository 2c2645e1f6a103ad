"""Shared by the configurations of DiVA: the networks and the authors' protocol.

The settings follow the authors' commands (github.com/Confusezius/ECCV2020_DiVA_MultiFeature_DML).
Where code and paper differ, the code is followed: 350 epochs (150 on Stanford Online Products)
instead of 150, weight decay 4e-4 instead of 5e-4, temperature 0.01 instead of 0.1, crops of at
least 8 % of the area instead of 224 pixels of 256, crops of 227 instead of 224 pixels with
BN-Inception, and alpha as the docstrings of the files say. The variants `printed` and
`bn_inception-printed` follow the text in all of this and in the equations: shared triplets of three
classes, beta fixed at 1.2, negatives alone in DaNCE's denominator and its weights min(lambda, 1/q).
The text does not give lambda; with the default 1 the weights at 128 dimensions lie in [0.706, 1],
almost plain NCE (`diva:equations-cub` varies it). The variant `triplet` replaces the margin loss of
the ranking tasks with the triplet loss and keeps the other settings, since no others are published.

After every epoch, the authors evaluate several weightings of the embeddings and keep the best on
the test set, although the paper does not say so; `--protocol=paper` does the same. Under the clean
protocol, the weights are fixed, with twice the weight for the auxiliary embeddings on CUB and
Cars196, as stated in the paper (`--config.method.ensemble` sets others).
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

from configs import base
from dml_jax.backbones import bn_inception, resnet
from dml_jax.backbones.contract import Pixels
from dml_jax.config import Data, Group, Train
from dml_jax.methods.diva import Config


def weightings(*ratios: tuple[int, int]) -> dict[str, dict[str, tuple[float, ...]]]:
    """Test-time variants by the weights of the discriminative and of each auxiliary embedding."""
    return {
        f"{own}:{other}": {"ensemble": (1.0 * own, *[1.0 * other] * 3)} for own, other in ratios
    }


def alpha(value: float) -> dict[str, float]:
    """The weight of the three auxiliary tasks."""
    return {f"method.alpha_{task}": value for task in ("selfsimilarity", "shared", "intra")}


PAPER_PROTOCOL = {
    **base.PAPER_PROTOCOL,
    "evaluation.kmeans_init": "random",  # as in faiss
    "evaluation.kmeans_restarts": 1,
    "evaluation.kmeans_iterations": 20,
    "evaluation.test_variants": weightings((3, 5), (1, 2), (1, 3)),
    "evaluation.test_variant": "best",
}
# With thousands of classes: In-Shop, for which the authors publish nothing, uses SOP's.
SOP: dict[str, Any] = {
    "alpha": 0.2, "rho": 150.0, "ensemble": (1.0, 1.0, 1.0, 1.0), "queue_batches": 70,
    "epochs": 150, "milestone": 70, "gamma": 0.3,
}  # fmt: skip
MANY_CLASSES = {
    **PAPER_PROTOCOL,
    "evaluation.test_variants": weightings((1, 1), (1, 2), (2, 1), (3, 2)),
}
RESNET_50 = resnet.Config(pretrained="weights/resnet50", freeze_bn=True)
# The constants of these weights, 128, 117, 104 and 1 of 255, rounded as in the authors' code.
BN_INCEPTION = bn_inception.Config(
    pretrained="weights/bn_inception",
    pixels=Pixels(mean=(0.4078, 0.4588, 0.502), std=(0.0039, 0.0039, 0.0039), order="bgr"),
)
# The equations of the paper and section 4 where they differ from the authors' code; alpha depends
# on the data set.
AS_PRINTED = {
    "method.equations": "paper",
    "method.shared": "standard",
    "method.temperature": 0.1,
    "train.groups.beta": Group(0.0, freeze=True),
}
PRINTED = {
    **AS_PRINTED,
    "data.crop": "random",
    "train.epochs": 150,
    "train.groups.backbone.weight_decay": 5e-4,
    "train.groups.embedding.weight_decay": 5e-4,
}
NETWORK = Group(1e-5, weight_decay=4e-4)
GROUPS = {"backbone": NETWORK, "embedding": NETWORK, "beta": Group(5e-4), "psi": Group(1e-5)}


def on(
    dataset: str,
    variants: base.Variants,
    protocol: Mapping[str, Any] = PAPER_PROTOCOL,
    *,
    alpha: float,
    rho: float,
    epochs: int,
    milestone: int,
    gamma: float,
    queue_batches: int,
    ensemble: tuple[float, float, float, float],
) -> base.Contents:
    """DiVA on a data set."""
    return base.contents(
        f"{dataset}_diva",
        protocol,
        variants,
        data=Data(
            name=dataset,
            path=f"data/{dataset}",
            sampler="with_replacement",
            batch_size=112,
            images_per_class=2,
            crop="random_resized",
            image_size=224,
            resize=256,
            flip=0.5,
        ),
        backbone=RESNET_50,
        method=Config(
            embedding_dim=128,
            base="margin",
            alpha_selfsimilarity=alpha,
            alpha_shared=alpha,
            alpha_intra=alpha,
            rho=(rho,),
            ensemble=ensemble,
            queue_batches=queue_batches,
            temperature=0.01,
        ),
        train=Train(
            groups=GROUPS,  # 1e-5 for the network
            optimizer="adam",
            epochs=epochs,
            schedule="step",
            milestones=(milestone,),
            gamma=gamma,
            checkpoint_every=1000,
        ),
        evaluation=base.EVALUATION[dataset],
    )


class Ablations(NamedTuple):
    """Common settings of the paper's ablations on a data set.

    Attributes:
      config: of DiVA with all four tasks.
      overrides: as stated in the paper, 150 epochs at a fixed learning rate; no commands are
        published, so that the other settings come from `config`.
      dimensions: of all embeddings together.
      classifier: parameter group of RotNet's and DeepCluster's classifiers.
    """

    config: str
    overrides: dict[str, Any]
    dimensions: int
    classifier: Group

    def tasks(self, *names: str, **method: Any) -> dict[str, Any]:
        """Overrides that train some of the tasks: the dimensions are divided among them, none are
        decorrelated."""
        options = {"tasks": names, "embedding_dim": self.dimensions // len(names), "directions": ()}
        if len(names) == 1:
            options["ensemble"] = (1.0, 1.0, 1.0, 1.0)
        options |= method
        return self.overrides | {f"method.{key}": value for key, value in options.items()}


def ablations(dataset: str) -> Ablations:
    """For the papers' data sets with BN-Inception, Omniglot, or photographs on frozen
    features."""
    equal = {"method.ensemble": (1.0, 1.0, 1.0, 1.0)}
    if dataset == "omniglot":
        return Ablations("configs/omniglot_diva.py", equal, 256, Group(1e-2))
    if dataset == "lite0":
        return Ablations("configs/folder_heads.py:diva", equal, 512, Group(1e-2))
    fixed = {"train.epochs": 150, "train.schedule": "constant"}
    return Ablations(f"configs/{dataset}_diva.py:bn_inception", fixed, 512, Group(1e-4))
