"""A student of `omniglot_mpn.py` on Omniglot: the same experiment without a message passing network.

    python -m dml_jax.main --config=configs/omniglot_mpn.py
    python -m dml_jax.main --config=configs/omniglot_student.py                  imitates the class probabilities
    python -m dml_jax.main --config=configs/omniglot_student.py:imitation        imitates the refined embeddings
    python -m dml_jax.main --config=configs/omniglot_student.py:relational       imitates their distances

`:distillation_kl` also imitates the probabilities, with the other form of the loss in the authors' code. Any run on the
same data can be the teacher of embeddings and distances (`--config.method.teacher=DIRECTORY`); a teacher of
probabilities needs a classifier, as MPN and the classification losses have. The control without a teacher is
`configs/omniglot_mpn.py --config.method.losses=auxiliary`.

No paper reports results on this split. On CUB and Cars196 the MPN paper (Table 8) reports R@1 65.7 and 85.6 for the
probabilities, 65.3 and 85.6 for the embeddings, 64.9 and 84.7 for the distances, 70.3 and 88.1 for MPN itself.
"""

from configs.omniglot_hist import on_omniglot
from configs.recipes.mpn import STUDENTS as VARIANTS
from dml_jax.config import Group
from dml_jax.methods import student

get_config = on_omniglot(
    student.Config(
        teacher="runs/omniglot_mpn", soft_temperature=10.0, embedding_dim=64, temperature=0.2, pooling="avg+max"
    ),
    dict.fromkeys(student.GROUPS, Group(4e-3, weight_decay=1e-4)),
    VARIANTS,
)
