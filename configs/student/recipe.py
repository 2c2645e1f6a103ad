"""Students of MPN (Seidenschwarz, Elezi, Leal-Taixé, ICML 2021, appendix C.4).

They learn class probabilities (in two forms of the authors' code, `distillation` and
`distillation_kl`), the refined embeddings (`imitation`) or their distances (`relational`). The
paper does not say which form of distillation it used, so both list its result. Nor does it say
whether the cross-entropy with the labels is kept; here it is.
"""

from configs import base
from configs.recipes import resnet_227
from dml_jax.methods import student

SOFT = {"method.soft_temperature": 1.0}
KINDS: base.Variants = {
    "distillation_kl": {"method.kind": "distillation_kl"},
    "imitation": {"method.kind": "imitation", **SOFT},
    "relational": {"method.kind": "relational", "method.weight": 0.01, **SOFT},
}
TEMPERATURES = {"cub": (0.2, 1.0), "cars": (0.1111111111111, 10.0)}


def on(dataset: str) -> base.Contents:
    """The contents of the file of a data set."""
    teacher, (temperature, soft) = f"runs/{dataset}_mpn", TEMPERATURES[dataset]
    return resnet_227.on(
        dataset,
        student.Config(
            teacher=teacher, embedding_dim=512, temperature=temperature, soft_temperature=soft
        ),
        KINDS,
        {**resnet_227.PAPER_PROTOCOL, "method.teacher": f"{teacher}-paper"},
        **resnet_227.TRAINING[dataset],
    )
