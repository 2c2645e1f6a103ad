"""A student of MPN on CUB-200-2011: ResNet-50, 512-d (Seidenschwarz, Elezi, Leal-Taixé, ICML 2021, appendix C.4).

    python -m dml_jax.main --config=configs/cub_mpn.py                          the teacher
    python -m dml_jax.main --config=configs/cub_student.py                      distillation, clean protocol
    python -m dml_jax.main --config=configs/cub_student.py:imitation            another variant
    python -m dml_jax.main --config=configs/cub_student.py --protocol=paper     student of cub_mpn.py --protocol=paper

The student learns class probabilities. Its variants use the other form of this loss in the code (`distillation_kl`), or
learn the refined embeddings (`imitation`) or their distances (`relational`). Published (Table 8): R@1 65.7, 65.3 for
`imitation`, 64.9 for `relational`, 70.3 for MPN itself without test-time batches. Cost: not published.

The paper does not say which form of distillation it used, so both list its result. Nor does it say whether the
cross-entropy with the labels is kept; here it is. The other settings are those of MPN; see configs/recipes/mpn.py.
"""

from ml_collections import ConfigDict

from configs.base import Variants, experiment
from configs.recipes import mpn
from dml_jax.config import Data, Evaluation, Group, Train
from dml_jax.methods import student

PAPER_PROTOCOL = {**mpn.PAPER_PROTOCOL, "method.teacher": "runs/cub_mpn-paper"}
VARIANTS: Variants = {
    "distillation_kl": {"method.kind": "distillation_kl"},
    "imitation": {"method.kind": "imitation"},
    "relational": {"method.kind": "relational", "method.weight": 0.01},
}


def get_config(variant: str = "") -> ConfigDict:
    return experiment(
        "cub_student",
        variant,
        VARIANTS,
        data=Data(
            name="cub", path="data/cub", sampler="mpn_redraw", batch_size=54,
            crop="random_resized", image_size=227, resize=256, flip=0.5, erasing=0.5,
        ),
        backbone=mpn.BACKBONE,  # ResNet-50
        method=student.Config(
            teacher="runs/cub_mpn", embedding_dim=512, temperature=0.2, soft_temperature=1.0,
        ),
        train=Train(
            groups=dict.fromkeys(student.GROUPS, Group(0.0001563663718906821, weight_decay=6.059722614369727e-06)),
            optimizer="radam",
            epochs=70,
            schedule="step", milestones=(30,), gamma=0.1,
            checkpoint_every=1000,
        ),
        evaluation=Evaluation(ks=(1, 2, 4, 8)),
    )  # fmt: skip
