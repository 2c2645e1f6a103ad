"""What the published experiments share: the four data sets, the two protocols, the names of variants.

The variants of a configuration are the keys of its table REPORTED, "" being the experiment itself. Each is there twice:
by itself under the clean protocol, a fixed schedule whose last model is judged, every query left out of its own
neighbours; and with "paper" behind it under the authors', the epoch that is best on the test set, and the first
neighbour left out whatever it is.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from ml_collections import ConfigDict

from configs.base import base
from dml_jax.config import Train

# By variant: Recall@K in % for the K of the data set, then NMI; None where it was not reported.
Reported = Mapping[str, tuple[float | None, ...]]

KS = {"cub": (1, 2, 4, 8), "cars": (1, 2, 4, 8), "sop": (1, 10, 100, 1000), "inshop": (1, 10, 20, 30, 40)}


def variants(reported: Reported) -> tuple[str, ...]:
    """What may follow the colon in `--config=FILE:VARIANT`."""
    return (*filter(None, reported), *("-".join(filter(None, (name, "paper"))) for name in reported))


def plain(variant: str) -> str:
    """The variant without its protocol: a key of REPORTED."""
    return "-".join(word for word in variant.split("-") if word != "paper")


def experiment(
    dataset: str, variant: str, reported: Reported, *, backbone: Any, method: Any, train: Train
) -> ConfigDict:
    """A configuration on a prepared data set, under the protocol that the variant names.

    Args:
      dataset: key of KS; `python -m dml_jax.prepare --name=cub --output=data/cub` puts it where it is looked for.
      variant: one of `variants(reported)`, or "".
      reported: the file's table.
      backbone, method: the `Config` of their modules.
      train: length, optimizer, schedule.
    """
    name = f"{dataset}_{method.name}"
    config = base(f"{name}-{variant}" if variant else name)
    config.data.update(name=dataset, path=f"data/{dataset}", crop="random_resized", resize=256, flip=0.5)
    config.backbone, config.method = asdict(backbone), asdict(method)
    config.train = asdict(replace(train, checkpoint_every=1000))
    config.evaluation.update(ks=KS[dataset], cluster=dataset != "inshop")  # nobody reports In-Shop's NMI
    keys = (*(f"recall@{k}" for k in KS[dataset]), "nmi")
    values = reported[plain(variant)]
    config.paper = {key: round(v / 100, 6) for key, v in zip(keys, values, strict=False) if v is not None}
    if "paper" in variant.split("-"):
        config.train.select, config.evaluation.protocol = "test", "paper"
    return config
