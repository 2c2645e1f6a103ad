"""Every method on EfficientNet-Lite0, frozen or with its last stages trained, for your own image
folders.

    python -m dml_jax.main --config=folder_heads:proxy_anchor --config.data.path=photos/
    python -m dml_jax.main --config=folder_heads:proxy_anchor-stages --config.data.path=photos/
    python -m benchmarks.claims mpn --on=photos:lite0_last --config.data.path=photos/

Data and network are those of `folder_baseline.py`. A linear layer, or CRT's prototypes and heads,
and the parameters of the loss are trained for 200 steps on batches of 16 classes (CRT: 8) with 4
images. CRT needs whole feature maps, which are stored when claims are tested (`--on=photos:lite0`);
the command above refuses it. `METHOD-stages` also trains blocks 11 to 15 and the last convolution,
for 150 steps of 32 images in random crops of 128 pixels. `METHOD-last`, for claims only, trains
block 15 and the last convolution for 600 steps of 32 images, on stored outputs of block 14 for
images of 128 pixels without augmentation.
"""

from collections.abc import Mapping
from dataclasses import replace

from ml_collections import ConfigDict

from configs import papers
from configs.base import experiment
from configs.folder_baseline import BACKBONE, DATA, EVALUATION, ON_FEATURES
from configs.recipes.own_photos import FROZEN, LAYER, NETWORK, Head
from dml_jax.config import Group
from dml_jax.methods import baseline

HEADS = {name: module.HEAD for name, module in papers.stating("folder").items()} | {
    name: Head(
        baseline.make_config(name, embedding_dim=256), {"embedding": LAYER, "loss": Group(1e-2)}
    )
    for name in ("proxy_anchor", "multi_similarity", "normalized_softmax")
}
# The last two stages and the head.
STAGES = ("backbone/blocks_1[1-5]", "backbone/conv_head", "backbone/bn1")
# For every row, claims try these factors of all rates on held-out training classes.
FACTORS = (1.0, 0.3, 3.0, 10.0)
LAST = ("backbone/blocks_15", *STAGES[1:])
VARIANTS = (*HEADS, *(f"{name}-{part}" for part in ("stages", "last") for name in HEADS))


def file_of(data: str, method: str, loss: str = "") -> str:
    """The configuration of a method in studies: on a data set as in its paper, or by the recipe
    `lite0`, `lite0_stages` or `lite0_last` on any data. A baseline is named with its loss."""
    name = loss or method
    variants = {"lite0": name, "lite0_stages": f"{name}-stages", "lite0_last": f"{name}-last"}
    if data in variants:
        return f"configs/folder_heads.py:{variants[data]}"
    return f"configs/{data}_{method}.py" + (f":{loss}" if loss else "")


def get_choices(variant: str) -> tuple[Mapping[str, float], ...]:
    """The overrides that claims try, the default first; none for `METHOD-stages`."""
    name, _, trained = variant.partition("-")
    groups = _groups(name, trained) if trained != "stages" else {}
    rates = {
        f"train.groups.{key}.learning_rate": made.learning_rate for key, made in groups.items()
    }
    return tuple({key: factor * rate for key, rate in rates.items()} for factor in FACTORS if rates)


def _groups(name: str, trained: str) -> dict[str, Group]:
    """The parameter groups that are trained."""
    network = {"": (), "last": LAST, "stages": STAGES}[trained]
    return {**dict.fromkeys(network, NETWORK), **HEADS[name].groups}


def get_config(variant: str = "proxy_anchor") -> ConfigDict:
    name, _, trained = variant.partition("-")
    head = HEADS[name]
    data = replace(DATA, training_size=0, batch_size=head.batch_size)
    groups = {"backbone": FROZEN, **_groups(name, trained)}
    train = replace(ON_FEATURES, groups=groups, steps=200)
    if trained == "last":
        data = replace(data, batch_size=32, image_size=128, resize=146)
        train = replace(train, feature_views=1, steps=600)
    if trained == "stages":
        data = replace(data, training_size=128, batch_size=32)
        train = replace(train, feature_views=0, steps=150)
    return experiment(
        "folder_heads",
        variant,
        data=data,
        backbone=BACKBONE,
        method=head.method,
        train=train,
        evaluation=replace(EVALUATION, controls=False, cluster=head.cluster),
    )
