"""MPN: the authors' random search ([Re] Learning Intra-Batch Connections, Table 1, last column).

The authors trained 30 settings for 40 epochs each and compared them on the test classes
(`--protocol=paper`). Their code samples the number of layers but does not use it.

    dml-jax study --study=re_mpn/search
"""

from collections.abc import Mapping
from typing import Any

from dml_jax.lab.definition import Search, Study, Uniform

VARIANTS = ("cub", "cars", "sop", "inshop", "omniglot")
GROUPS = ("backbone", "embedding", "auxiliary", "mpn")


def overrides(values: Mapping[str, Any]) -> dict[str, Any]:
    """Options from the parameters of the search, which are the table's rows."""
    groups = {
        f"train.groups.{group}.{key}": values[key]
        for group in GROUPS
        for key in ("learning_rate", "weight_decay")
    }
    batch = {
        "data.sampler": "chunks", "data.images_per_class": values["images"],
        "data.batch_size": values["classes"] * values["images"],
    }  # fmt: skip
    return (
        groups
        | batch
        | {f"method.{key}": values[key] for key in ("temperature", "layers", "heads")}
    )


def get_study(variant: str = "cub") -> Study:
    space: dict[str, tuple[int, ...] | Uniform] = {
        "learning_rate": Uniform(1e-5, 1e-3, log=True),
        "weight_decay": Uniform(1e-15, 1e-6, log=True),
        "temperature": Uniform(0.01, 1.0),
        "classes": Uniform(6, 15),
        "images": Uniform(3, 9),
        "layers": Uniform(1, 4),
        "heads": (1, 2, 4, 8),
    }
    length = {} if variant == "omniglot" else {"train.epochs": 40}  # as in the authors' search
    return Study(
        title=f"MPN, random search: {variant}",
        source="Reproduction, Table 1; `configs/*_mpn.py` has the values that the authors found.",
        search=Search(
            f"configs/{variant}_mpn.py",
            space,
            lambda values: overrides(values) | length,
            sampler="random",
        ),
    )
