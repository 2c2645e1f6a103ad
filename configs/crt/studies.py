"""CRT: the studies of its paper (Kan et al., NeurIPS 2022), one variant per study and data set.

    dml-jax study --study=crt:components-cub

On CUB, Tables 6 to 10 use MiT-B1. The paper does not state the backbone of Tables 1 and 2; here it
is MiT-B2, as in its main results. It tests the first branch, with 128 dimensions; for the second,
with 1,024, no results are published.
"""

from typing import Any

from configs import tables
from configs.folder_heads import file_of
from dml_jax.config import Group
from dml_jax.lab.definition import Row, grid

AVERAGE = {"method.transform": "average"}
MS_ALONE = {**AVERAGE, "method.lambda1": (1.0, 0.0), "method.lambda2": 0.0}
COMPONENTS: dict[str, dict[str, Any]] = {
    "CRT": {},
    "without residuals": AVERAGE,
    "multi-similarity loss alone": MS_ALONE,
}
PLACEBOS: dict[str, dict[str, Any]] = {
    "fixed prototypes": {"train.groups.prototypes": Group(0.0, freeze=True)},
    "shuffled residuals": {"method.transform": "shuffled"},
    "wide average pooling": {"method.transform": "wide_average"},
}
BACKBONES = {
    "GoogLeNet": "googlenet",
    "BN-Inception": "bn_inception",
    "ResNet-50": "resnet50",
    "DeiT-S": "deit",
    "MiT-B1": "mit_b1",
}
SECOND = {"cub": 64, "omniglot": 16, "lite0": 16}  # prototypes of the second branch


def rows_of(name: str, data: str) -> tuple[Row, ...]:
    file = file_of(data, "crt")
    small = f"{file}:mit_b1" if data == "cub" else file
    match name:
        case "geometry":
            return (Row("multi-similarity loss alone", file, MS_ALONE), Row("CRT", file))
        case "branches":
            other = {"method.tested_branch": "branch2"}
            return (Row("branch 1", file), Row("branch 2", file, other))
        case "backbones":
            return tuple(
                Row(f"{text}, {suffix}", f"{file}:{key}", overrides)
                for text, key in BACKBONES.items()
                for suffix, overrides in (("MS", MS_ALONE), ("MS + CRT", {}))
            )
        case "components":
            # The paper's third row leaves out both; this one keeps the residuals.
            more = {} if data == "cub" else {"without consistency": {"method.lambda2": 0.0}}
            rows = {**COMPONENTS, **more, **PLACEBOS}.items()
            proxy_anchor = Row("Proxy-Anchor", file_of(data, "baseline", "proxy_anchor"))
            return (*(Row(name, small, part) for name, part in rows), proxy_anchor)
        case "first_prototypes":
            second = SECOND[data]
            pairs = tuple((first, second) for first in (1, 4, 16, 64) if first <= second)
            return grid(small, {"method.prototypes": pairs}, {"method.sharing": "separate"})
        case "prototypes":
            counts = (1, 4, 16, 64, 100) if data == "cub" else (1, 4, 16, 64)
            return grid(small, {"method.prototypes": tuple((n, n) for n in counts)})
    values = {"gamma": ("single", "per_prototype"), "sharing": ("shared", "separate")}[name]
    return grid(small, {f"method.{name}": values})


VARIANTS, get_study = tables.contents("crt", "CRT", rows_of)
