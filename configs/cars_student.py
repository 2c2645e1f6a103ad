"""A student of MPN on Cars196: ResNet-50, 512-d (Seidenschwarz, Elezi, Leal-Taixé, ICML 2021,
appendix C.4).

The student learns class probabilities. Its variants use the other form of this loss in the code
(`distillation_kl`), or learn the refined embeddings (`imitation`) or their distances
(`relational`). Published (Table 8): R@1 85.6, 85.6 for `imitation`, 84.7 for `relational`, 88.1 for
MPN itself without test-time batches. Cost: not published.
"""

from configs.recipes import resnet_227
from configs.student import recipe
from dml_jax.methods import student

PAPER_PROTOCOL, VARIANTS, get_config = resnet_227.on(
    "cars",
    recipe.KINDS,
    teacher="runs/cars_mpn-paper",
    method=student.Config(
        teacher="runs/cars_mpn",
        embedding_dim=512,
        temperature=0.1111111111111,
        soft_temperature=10.0,
    ),
    rate=0.00036683239911604993,
    decay=2.551918610962277e-09,
    sampler="chunks",
    batch_size=70,
    images_per_class=7,
)
