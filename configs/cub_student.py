"""A student of MPN on CUB-200-2011: ResNet-50, 512-d (Seidenschwarz, Elezi, Leal-Taixé, ICML 2021,
appendix C.4).

The student learns class probabilities. Its variants use the other form of this loss in the code
(`distillation_kl`), or learn the refined embeddings (`imitation`) or their distances
(`relational`). Published (Table 8): R@1 65.7, 65.3 for `imitation`, 64.9 for `relational`, 70.3 for
MPN itself without test-time batches. Cost: not published.
"""

from configs.recipes import resnet_227
from configs.student import recipe
from dml_jax.methods import student

PAPER_PROTOCOL, VARIANTS, get_config = resnet_227.on(
    "cub",
    recipe.KINDS,
    teacher="runs/cub_mpn-paper",
    method=student.Config(
        teacher="runs/cub_mpn", embedding_dim=512, temperature=0.2, soft_temperature=1.0
    ),
    rate=0.0001563663718906821,
    decay=6.059722614369727e-06,
    sampler="redrawn_chunks",
    batch_size=54,
)
