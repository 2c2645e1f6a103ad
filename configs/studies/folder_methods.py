"""Losses and methods on your own photographs: untrained, with a trained head, or as a whole.

    dml-jax study --study=configs/studies/folder_methods.py --seeds=0,1,2 --config.data.path=photos/
    dml-jax study --study=configs/studies/folder_methods.py:frozen --config.data.path=photos/

The folder has one subfolder per class, and half of the classes are used for training, as in
`configs/folder_baseline.py`. All rows use EfficientNet-Lite0 with ImageNet weights, evaluated on
images of 224 pixels: `no training` its pooled features, `frozen: …` a linear layer of 512
dimensions and the loss (600 steps on features), the others the whole network (150 steps of 8 x 4
random crops of 128 pixels). Where possible, all losses use the same rates and lengths. For what was
tried, and for results, see benchmarks/PHOTOGRAPHS.md.
"""

from dataclasses import replace
from functools import partial

from configs import papers
from configs.folder_baseline import DATA, EVALUATION, ON_FEATURES, groups
from configs.recipes.own_photos import DIMENSIONS, FROZEN, Whole
from dml_jax.config import Train
from dml_jax.lab.definition import Row, Study
from dml_jax.methods import baseline

VARIANTS = ("all", "frozen")
CONFIG = "configs/folder_baseline.py:frozen"
STEPS = 150
WITHOUT_CONTROLS = {"evaluation": replace(EVALUATION, controls=False)}
CROPS = replace(DATA, training_size=128)
WITH_LOSS = groups(1e-4, 3e-4)
loss = partial(baseline.make_config, embedding_dim=DIMENSIONS)  # a linear layer and a loss
METHODS = (
    Whole("Proxy-Anchor", loss("proxy_anchor"), WITH_LOSS, frozen=True),
    Whole("multi-similarity", loss("multi_similarity"), WITH_LOSS, frozen=True),
    Whole("normalised softmax", loss("normalized_softmax"), WITH_LOSS),
    *(paper.WHOLE for paper in papers.stating("folder").values() if paper.WHOLE),
)


def get_study(variant: str = "all") -> Study:
    untrained = {
        "method": baseline.make_config(embedding_dim=0),
        "train": replace(ON_FEATURES, feature_views=0, steps=1),
        "evaluation": EVALUATION,
    }
    rows = [Row("no training", CONFIG, untrained)]
    for row, method, trained, on_features in METHODS:
        train = replace(ON_FEATURES, groups={**trained, "backbone": FROZEN})
        changed = {"method": method, "train": train, **WITHOUT_CONTROLS}
        rows += [Row(f"frozen: {row}", CONFIG, changed)] if on_features else []
    for row, method, trained, _ in METHODS if variant == "all" else ():
        train = Train(groups=trained, steps=STEPS, optimizer="adamw", schedule="cosine")
        changed = {"data": CROPS, "method": method, "train": train, **WITHOUT_CONTROLS}
        rows.append(Row(row, CONFIG, changed))
    return Study(
        f"Photographs in folders, methods on EfficientNet-Lite0: {variant}",
        "No paper reports these; the guide `Train on your photos` shows results on fruit and "
        "vegetables.",
        tuple(rows),
        metric="map@r",
    )
