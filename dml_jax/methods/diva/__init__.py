"""DiVA: diverse visual feature aggregation (Milbich, Roth et al., ECCV 2020).

One backbone has four embeddings of unit length, each a linear layer on the average-pooled features,
trained by its own task:

    discriminative   triplets (a, p, n) with y_a = y_p != y_n           separates classes
    shared           triplets across classes                            features shared by classes
    intra            triplets within one class                          variation within a class
    selfsimilarity   DaNCE: a second view against a queue of keys       single images

A further loss term decorrelates the embeddings. At test time, the weighted embeddings are
concatenated and normalised. The paper's Figure 4 compares DiVA with plain NCE (`dance="off"`), an
ensemble of four discriminative tasks (`Config.learners`), and other self-supervised tasks
(`benchmarks/papers/diva.py`).

    options        `Config`
    equations      triplets and losses of the paper, in order of their numbers
    method         `build`
    checkpoints    the authors' checkpoints, for `dml-jax convert`

Expected R@1 with ResNet-50, 4 x 128-d: CUB 69.2, Cars196 87.6, SOP 79.6.
"""

from dml_jax.methods.diva.method import build
from dml_jax.methods.diva.options import GROUPS, TASKS, Config

__all__ = ["GROUPS", "TASKS", "Config", "build"]
