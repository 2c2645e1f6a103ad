"""Losses and methods on your own photographs: without training, on frozen features, and with the whole network trained.

    dml-jax study --study=configs/studies/folder_methods.py --seeds=0,1,2 --config.data.path=photos/
    dml-jax study --study=configs/studies/folder_methods.py:frozen --seeds=0,1,2 --config.data.path=photos/

The folder has one subfolder per class, and half of the classes are used for training, as in
`configs/folder_baseline.py`. All rows use EfficientNet-Lite0 with ImageNet weights, evaluated on images of 224 pixels.

    no training          its pooled features; the row also evaluates a colour histogram
    frozen: …            a linear layer of 512 dimensions and the loss, 600 steps on features computed once
    …                    the whole network on random crops of 128 pixels, 150 steps of 32 images, 8 classes of 4

Where possible, all losses use the same rates and lengths: 1e-4 for the network and 3e-4 for the embedding layer with
AdamW, weight decay 1e-4 and a cosine schedule; batch normalisation is frozen. For what was tried, and for results on
photographs of fruit and vegetables, see docs/guides/photos.md.
"""

from dataclasses import replace
from functools import partial
from typing import Any

from configs.folder_baseline import DATA, EVALUATION, HEAD, ON_FEATURES
from dml_jax.config import Group, Train
from dml_jax.methods import baseline, crt, diva, hist, mpn
from dml_jax.studies.definition import Row, Study

VARIANTS = ("all", "frozen")
CONFIG = "configs/folder_baseline.py:frozen"
STEPS = 150
DIMENSIONS = 512
WITHOUT_CONTROLS = replace(EVALUATION, controls=False)
CROPS = replace(DATA, training_size=128)
NETWORK = Group(1e-4, weight_decay=1e-4)
LAYER = HEAD["embedding"]
WITH_LOSS = {"backbone": NETWORK, **HEAD}
loss = partial(baseline.make_config, embedding_dim=DIMENSIONS)  # a linear layer and a loss
METHODS: dict[str, tuple[Any, dict[str, Group]]] = {  # by row: the method and its parameter groups
    "Proxy-Anchor": (loss("proxy_anchor"), WITH_LOSS),
    "HIST": (
        hist.Config(embedding_dim=DIMENSIONS, hidden_dim=DIMENSIONS, pooling="avg", tau=8.0, alpha=1.0),
        {"backbone": NETWORK, "embedding": LAYER, "distributions": Group(1e-1, weight_decay=1e-4), "hgnn": Group(1e-3)},
    ),
    "MPN": (
        mpn.Config(embedding_dim=DIMENSIONS, pooling="avg", temperature=1.0),
        {"backbone": NETWORK, "embedding": LAYER, "auxiliary": LAYER, "mpn": LAYER},
    ),
    "CRT": (
        crt.Config(embedding_dims=(DIMENSIONS, 1024), prototypes=(16, 16), hidden_dim=128),
        {"backbone": NETWORK, "prototypes": LAYER, "embedding": LAYER},
    ),
    "multi-similarity": (loss("multi_similarity"), WITH_LOSS),
    "normalised softmax": (loss("normalized_softmax"), WITH_LOSS),
    "DiVA": (diva.Config(), {"model": NETWORK, "beta": Group(5e-4), "psi": Group(1e-4)}),
}


def get_study(variant: str = "all") -> Study:
    untrained = {
        "method": baseline.make_config(embedding_dim=0),
        "train": replace(ON_FEATURES, feature_views=0, steps=1),
        "evaluation": EVALUATION,
    }
    rows = [Row("no training", CONFIG, untrained)]
    frozen = ON_FEATURES.groups["backbone"]
    for name in ("Proxy-Anchor", "HIST", "multi-similarity"):
        method, groups = METHODS[name]
        train = replace(ON_FEATURES, groups={**groups, "backbone": frozen})
        rows.append(Row(f"frozen: {name}", CONFIG, {"method": method, "train": train, "evaluation": WITHOUT_CONTROLS}))
    for name, (method, groups) in METHODS.items() if variant == "all" else ():
        train = Train(groups=groups, steps=STEPS, optimizer="adamw", schedule="cosine")
        rows.append(
            Row(name, CONFIG, {"data": CROPS, "method": method, "train": train, "evaluation": WITHOUT_CONTROLS})
        )
    return Study(
        title=f"Photographs in folders, methods on EfficientNet-Lite0: {variant}",
        source="No paper reports these; the guide `Train on your photos` shows results on fruit and vegetables.",
        rows=tuple(rows),
        metric="map@r",
    )
