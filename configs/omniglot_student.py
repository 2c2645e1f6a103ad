"""A student of `omniglot_mpn.py` on Omniglot; see configs/student/recipe.py for the variants.

    python -m dml_jax.main --config=configs/omniglot_mpn.py
    python -m dml_jax.main --config=configs/omniglot_student.py

Any run on the same data can be the teacher of embeddings and distances
(`--config.method.teacher=DIRECTORY`); a teacher of probabilities needs a classifier, as MPN and the
classification losses have. Without a teacher: `omniglot_mpn.py --config.method.losses=auxiliary`.
"""

from configs.recipes.small import on_omniglot
from configs.student.recipe import KINDS as VARIANTS
from dml_jax.config import Group
from dml_jax.methods import student

get_config = on_omniglot(
    student.Config(
        teacher="runs/omniglot_mpn",
        soft_temperature=10.0,
        embedding_dim=64,
        temperature=0.2,
        pooling="avg+max",
    ),
    dict.fromkeys(student.GROUPS, Group(4e-3, weight_decay=1e-4)),
    VARIANTS,
)
