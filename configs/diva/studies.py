"""DiVA: the studies of its paper (Milbich, Roth et al., ECCV 2020), one variant per study and data
set.

    dml-jax study --study=diva:tasks-cub

They use BN-Inception at a fixed learning rate, except for `backbones` (Table 2). The paper does not
state the data set of `separate` (Table 3); its numbers fit CUB. All rows of `tasks` have about 512
dimensions in total (256 on Omniglot). The separate models' embeddings have the weights of DiVA's.
`equations` compares the authors' code with the text, which does not give lambda, the bound of
DaNCE's weights; no results are published for it.
"""

from typing import Any, NamedTuple

from configs import tables
from configs.diva import recipe
from configs.folder_heads import file_of
from configs.tables import Rows
from dml_jax.config import Group
from dml_jax.lab.definition import Row

D, DANCE, SHARED, INTRA = "discriminative", "selfsimilarity", "shared", "intra"
EQUAL: dict[str, Any] = {"method.ensemble": (1.0, 1.0, 1.0, 1.0)}
ONE = recipe.alpha(1.0)
MODELS = {
    f"separate_{'dance' if task == DANCE else task}": task for task in (D, DANCE, SHARED, INTRA)
}
BACKBONES = {
    "BN-Inception, triplet loss": ":bn_inception-triplet", "BN-Inception": ":bn_inception",
    "ResNet-50, triplet loss": ":triplet", "ResNet-50": "",
}  # fmt: skip
LAMBDAS = (0.1, 0.3, 3.0, 10.0)  # upper bounds of the weights of DaNCE


class Ablations(NamedTuple):
    """Common settings of the paper's ablations on a data set; no commands are published."""

    config: str  # of DiVA with all four tasks, from which the other settings come
    overrides: dict[str, Any]  # as stated in the paper, 150 epochs at a fixed learning rate
    dimensions: int  # of all embeddings together
    classifier: Group  # of RotNet's and DeepCluster's classifiers

    def tasks(self, *names: str, **method: Any) -> dict[str, Any]:
        """Overrides that train some of the tasks, which share the dimensions and are not
        decorrelated."""
        size = self.dimensions // len(names)
        options = {"tasks": names, "embedding_dim": size, "directions": (), **method}
        found = self.overrides | {f"method.{key}": value for key, value in options.items()}
        return found | EQUAL if len(names) == 1 else found


def ablations(dataset: str) -> Ablations:
    """For the papers' data sets with BN-Inception, Omniglot, or photographs on frozen
    features."""
    if dataset == "omniglot":
        return Ablations("configs/omniglot_diva.py", EQUAL, 256, Group(1e-2))
    if dataset == "lite0":
        return Ablations("configs/folder_heads.py:diva", EQUAL, 512, Group(1e-2))
    fixed = {"train.epochs": 150, "train.schedule": "constant"}
    return Ablations(f"configs/{dataset}_diva.py:bn_inception", fixed, 512, Group(1e-4))


def four_equal(base: Ablations) -> dict[str, Any]:
    """All four heads learn the discriminative task."""
    return {**base.overrides, **ONE, "method.learners": "discriminative", **EQUAL}


def tasks(data: str) -> Rows:
    base = ablations(data)
    config = base.config
    # As in the authors' code, pairs and triples of tasks are not decorrelated, except here.
    three = (f"{DANCE}-{D}", f"{SHARED}-{D}", f"{SHARED}-{DANCE}")
    return (
        Row("D", config, base.tasks(D)),
        Row("D + DaNCE", config, base.tasks(D, DANCE)),
        Row("D + S", config, base.tasks(D, SHARED)),
        Row("D + I", config, base.tasks(D, INTRA)),
        Row("D + DaNCE + I", config, base.tasks(D, DANCE, INTRA)),
        Row("D + S + I", config, base.tasks(D, SHARED, INTRA)),
        Row("D + DaNCE + S", config, base.tasks(D, DANCE, SHARED, directions=three)),
        Row("D + DaNCE + S + I", config, base.overrides),
        Row("permuted labels", config, {**base.overrides, "method.learners": "permuted"}),
        Row("four equal heads", config, four_equal(base)),
        Row("Proxy-Anchor", file_of(data, "baseline", "proxy_anchor")),
    )


def backbones(data: str) -> Rows:
    file = f"configs/{data}_diva.py"
    alone = {"method.tasks": (D,), "method.directions": (), "method.embedding_dim": 512, **EQUAL}
    rows = (Row(name, file + suffix) for name, suffix in BACKBONES.items())
    return (Row("ResNet-50, margin loss alone", file, alone), *rows)


def separate(data: str) -> Rows:
    base = ablations(data)
    # Weight of the embeddings, as in DiVA.
    auxiliary = 1.0 if data in ("omniglot", "lite0") else 2.0
    size = base.dimensions // 4
    models = (
        Row(name, base.config, {**base.tasks(task, embedding_dim=size), **ONE})
        for name, task in MODELS.items()
    )
    return (
        *models,
        Row("separate models", members=tuple(MODELS), weights=(1.0, *3 * [auxiliary])),
        Row("baseline", base.config, base.tasks(D)),
        Row("no decorrelation", base.config, {**base.overrides, "method.directions": ()}),
        Row("DiVA", base.config, base.overrides),
    )


def self_supervision(data: str) -> Rows:
    base = ablations(data)
    config = base.config

    def instead(task: str, **more: Any) -> dict[str, Any]:
        return base.tasks(D, task, name="benchmarks.papers.diva", alpha_selfsimilarity=1.0, **more)

    def classified(task: str) -> dict[str, Any]:  # without an embedding of its own
        options = instead(task, embedding_dim=base.dimensions)
        return {**options, **EQUAL, "train.groups.classifier": base.classifier}

    return (
        Row("baseline", config, base.tasks(D)),
        Row("DaNCE", config, base.tasks(D, DANCE)),
        Row("NCE", config, base.tasks(D, DANCE, dance="off")),
        # Memory: of all images, as the paper cites it; views: of the batch, as in the code.
        Row("instance discrimination, memory", config, instead("instance")),
        Row("instance discrimination, views", config, instead("spread")),
        Row("RotNet", config, classified("rotnet")),
        Row("DeepCluster", config, classified("deepcluster")),
        Row("discriminative ensemble", config, four_equal(base)),
        Row("DiVA", config, base.overrides),
    )


def equations(data: str) -> Rows:
    config = file_of(data, "diva")
    printed = recipe.AS_PRINTED
    bounded = {
        f"as printed, lambda={bound:g}": {**printed, "method.dance_lambda": bound}
        for bound in LAMBDAS
    }
    rows = {"authors' code": {}, "as printed": printed, **bounded}
    return tuple(Row(name, config, overrides) for name, overrides in rows.items())


STUDIES = {
    made.__name__: made for made in (tasks, backbones, separate, self_supervision, equations)
}
VARIANTS, get_study = tables.contents("diva", "DiVA", lambda name, data: STUDIES[name](data))
