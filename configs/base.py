"""The function that every configuration file calls: turns typed sections into the `ConfigDict` of
an experiment."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from ml_collections import ConfigDict

from configs import published
from dml_jax.config import Data, Evaluation, Train
from dml_jax.config.files import apply_override

Variants = Mapping[str, Mapping[str, Any]]
# What a configuration file defines: PAPER_PROTOCOL, VARIANTS, and the function that makes one.
Contents = tuple[Mapping[str, Any], Collection[str], Callable[..., ConfigDict]]
# What most authors do.
PAPER_PROTOCOL = {
    "data.exif_rotation": False,  # the authors' loaders ignore it
    "train.select": "test",  # the epoch that is best on the test classes
    "evaluation.protocol": "paper",  # drops the first neighbour, whichever image it is
}
# Crops of what most authors train on; the options of `Data`.
CROPS: dict[str, Any] = {"crop": "random_resized", "image_size": 224, "resize": 256, "flip": 0.5}
EVALUATION = {  # by data set
    "cub": Evaluation(ks=(1, 2, 4, 8)),
    "cars": Evaluation(ks=(1, 2, 4, 8)),
    "sop": Evaluation(ks=(1, 10, 100, 1000)),
    "inshop": Evaluation(ks=(1, 10, 20, 30, 40), cluster=False),
}


def experiment(
    name: str,
    variant: str = "",
    variants: Variants | None = None,
    *,
    data: Data,
    backbone: Any,
    method: Any,
    train: Train,
    evaluation: Evaluation | None = None,
) -> ConfigDict:
    """An experiment with all options of its sections, which the command line can override.

    Args:
      name: of the configuration file.
      variant: appended to the name.
      variants: by name, the overrides that make a variant: values or whole sections by dotted key.
      data, train, evaluation: documented in `dml_jax/config`.
      backbone, method: the `Config` of their module, where it is documented.
    """
    full_name = f"{name}:{variant}" if variant else name
    values = {
        "name": full_name.replace(":", "-"),
        "seed": 0,
        "init_from": "",
        "data": asdict(data),
        "backbone": asdict(backbone),
        "method": asdict(method),
        "train": asdict(train),
        "evaluation": asdict(evaluation or Evaluation()),
        "paper": published.beside_runs(full_name),
    }
    for key, value in (variants or {}).get(variant, {}).items():
        apply_override(values, key, value)
    return ConfigDict(values)


def on(
    dataset: str,
    method: Any,
    protocol: Mapping[str, Any],
    variants: Variants | None = None,
    differences: Mapping[str, Any] | None = None,
    **sections: Any,
) -> Contents:
    """What the configuration file of a method on one of the papers' data sets contains.

    Args:
      differences: sections (see `experiment`) that differ from those of this data set.
    """
    found = {
        name: {**(differences or {}), **own} for name, own in {"": {}, **(variants or {})}.items()
    }
    sections["data"] = replace(sections["data"], name=dataset, path=f"data/{dataset}")
    sections["evaluation"] = EVALUATION[dataset]
    make = partial(
        experiment, f"{dataset}_{method.name}", variants=found, method=method, **sections
    )
    return protocol, variants or {}, make
