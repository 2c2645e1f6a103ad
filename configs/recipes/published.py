"""The common parts of the published experiments: data sets, the two protocols, the names of variants.

The variants of a configuration are the keys of its table REPORTED; "" is the experiment itself. Each exists under two
protocols. Under the clean one, the default, the last model of a fixed schedule is evaluated, and a query is excluded
from its own neighbours by its index. With the suffix "paper", as in the authors' code, the epoch that is best on the
test set is evaluated, and the first neighbour is dropped whichever image it is.

The recipes also accept any other name of a data set. The images are then read from `data/<name>`, prepared or a folder
with one subfolder per class.
"""

from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

from ml_collections import ConfigDict

from configs.base import base
from dml_jax.config import Train

# By variant: Recall@K in % for each K of the data set, then NMI; None where not reported.
Reported = Mapping[str, tuple[float | None, ...]]

KS = {"cub": (1, 2, 4, 8), "cars": (1, 2, 4, 8), "sop": (1, 10, 100, 1000), "inshop": (1, 10, 20, 30, 40)}
OTHER_KS = (1, 2, 4, 8)  # of a data set that no paper reports


def variants(reported: Reported) -> tuple[str, ...]:
    """The variants that `--config=FILE:VARIANT` accepts, under both protocols."""
    return (*filter(None, reported), *("-".join(filter(None, (name, "paper"))) for name in reported))


def without_protocol(variant: str) -> str:
    """The variant without the suffix "paper": a key of REPORTED."""
    return "-".join(word for word in variant.split("-") if word != "paper")


def experiment(
    dataset: str, variant: str, reported: Reported, *, backbone: Any, method: Any, train: Train
) -> ConfigDict:
    """A configuration on a data set, under the protocol of the variant.

    Args:
      dataset: key of KS, or the name of a folder below `data`; see above.
      variant: one of `variants(reported)`, or "".
      reported: table REPORTED of the configuration file; {} if there are no published results.
      backbone, method: the `Config` of their modules.
      train: length, optimizer, schedule.
    """
    name = f"{dataset}_{method.name}"
    config = base(f"{name}-{variant}" if variant else name)
    ks = KS.get(dataset, OTHER_KS)
    config.data.update(
        name=dataset if dataset in KS else "folder", path=f"data/{dataset}", crop="random_resized", resize=256, flip=0.5
    )
    config.backbone, config.method = asdict(backbone), asdict(method)
    config.train = asdict(replace(train, checkpoint_every=1000))
    config.evaluation.update(ks=ks, cluster=dataset != "inshop")  # NMI is not reported for In-Shop
    keys = (*(f"recall@{k}" for k in ks), "nmi")
    values = reported[without_protocol(variant)] if reported else ()
    config.paper = {key: round(v / 100, 6) for key, v in zip(keys, values, strict=False) if v is not None}
    if "paper" in variant.split("-"):
        config.train.select, config.evaluation.protocol = "test", "paper"
    return config
