"""Claims of MPN (Seidenschwarz et al., ICML 2021).

python -m benchmarks.claims mpn --on=photos:lite0
"""

from typing import Any

from benchmarks.claims.ledger import Claim
from configs.papers import installed

TITLE = "MPN"
ACTIVE: Any = {"active": ("attention_divergence", "above", 0.05)}
MECHANISM = {**ACTIVE, "placebos": ("no messages", "uniform weights", "permuted messages")}
GROUP_LOSS = (
    Claim(
        "group-loss",
        "MPN is better than the Group Loss, by 4.8 points of R@1 on CUB.",
        "Section 4.3, Table 1",
        "mpn:group_loss",
        ("Group Loss", "MPN"),
        **ACTIVE,
    ),
    Claim(
        "overfitting",
        "MPN overfits less than the Group Loss: training and test classes differ less in R@1.",
        "Section 4.3, Figure 8",
        "mpn:group_loss",
        ("Group Loss", "MPN"),
        "lower",
        metric="overfitting",
        **ACTIVE,
    ),
)
STUDENTS = Claim(
    "students",
    "A student that learns the class probabilities does not reach training without a teacher.",
    "Appendix C.4, Table 8",
    "mpn:students",
    ("no teacher", "distillation"),
    "lower",
)
CLAIMS = (
    Claim(
        "message-passing",
        "Training with message passing is better than the auxiliary loss alone, by 2.8 points of "
        "R@1.",
        "Section 4.4, Table 3",
        "mpn:losses",
        ("auxiliary loss", "both losses"),
        **MECHANISM,
    ),
    Claim(
        "message-passing-nmi",
        "Training with message passing raises the NMI, by 4.2 points.",
        "Section 4.4, Table 3",
        "mpn:losses",
        ("auxiliary loss", "both losses"),
        metric="nmi",
        **MECHANISM,
    ),
    Claim(
        "auxiliary-loss",
        "The auxiliary loss on the backbone improves R@1, by 2.2 points on CUB.",
        "Section 4.4, Table 3",
        "mpn:losses",
        ("MPN loss", "both losses"),
        **ACTIVE,
    ),
    Claim(
        "mpn-loss-alone",
        "The MPN loss alone is already better than the auxiliary loss alone.",
        "Section 4.4, Table 3",
        "mpn:losses",
        ("auxiliary loss", "MPN loss"),
        **ACTIVE,
    ),
    Claim(
        "test-time",
        "Message passing at test time improves R@1, by 0.5 points.",
        "Section 4.4, Table 3",
        "mpn:losses",
        ("both losses", "both losses + reciprocal"),
        **ACTIVE,
    ),
    Claim(
        "test-time-not-needed",
        "Message passing at test time is not needed: it changes R@1 by less than a point.",
        "Section 3.5, Table 3",
        "mpn:losses",
        ("both losses", "both losses + reciprocal"),
        "equal",
        0.01,
        **ACTIVE,
    ),
    Claim(
        "test-time-clusters",
        "Batches from k-means do not improve on the backbone's embeddings at test time.",
        "Appendix C.1, Table 8",
        "mpn:test_time",
        ("backbone", "backbone + kmeans"),
        "lower",
        **ACTIVE,
    ),
    Claim(
        "test-time-neighbours",
        "Batches of nearest neighbours do not improve on the backbone's embeddings.",
        "Appendix C.2, Table 8",
        "mpn:test_time",
        ("backbone", "backbone + neighbors"),
        "lower",
        **ACTIVE,
    ),
    Claim(
        "layers",
        "More layers do not result in a large drop (less than 2 points from one to four).",
        "Section 4.4, Figure 3",
        "mpn:layers_heads",
        ("layers=1 heads=2", "layers=4 heads=2"),
        "equal",
        0.02,
        **ACTIVE,
    ),
    Claim(
        "heads",
        "More attention heads do not result in a large drop (less than 2 points from two to "
        "eight).",
        "Section 4.4, Figure 3",
        "mpn:layers_heads",
        ("layers=1 heads=2", "layers=1 heads=8"),
        "equal",
        0.02,
        **ACTIVE,
    ),
    Claim(
        "embedding-size",
        "Performance grows with the size of the embedding.",
        "Section 4.4, Figure 5, Table 5",
        "mpn:embedding_size",
        ("64 dimensions", "512 dimensions"),
        rows_on=dict.fromkeys(("omniglot", "lite0"), ("embedding_dim=16", "embedding_dim=128")),
    ),
    Claim(
        "batches",
        "The composition of the batches matters by less than 3 points on CUB.",
        "Appendix H, Figures 18 and 19",
        "mpn:batches",
        ("classes=5 images=10", "classes=10 images=5"),
        "equal",
        0.03,
    ),
    Claim(
        "image-size",
        "Larger images are better.",
        "Appendix B, Table 7",
        "mpn:image_size",
        ("227 pixels", "256 pixels"),
        rows_on={"omniglot": ("48 pixels", "64 pixels")},
    ),
    Claim(
        "ensemble",
        "Two networks are better than one, by 1.9 points of R@1 on CUB.",
        "Section 4.4, Table 4",
        "mpn:ensembles",
        ("network 1", "2 networks"),
    ),
    Claim(
        "state-of-the-art",
        "MPN is better than the losses of its time, here Proxy-Anchor: by 0.6 points of R@1 on "
        "CUB and 0.4 on Cars196.",
        "Section 4.3, Tables 1 and 2",
        "mpn:losses",
        ("Proxy-Anchor", "both losses"),
        **ACTIVE,
    ),
    Claim(
        "no-feedback",
        "Hyperparameters are robustly chosen without feedback from the test classes, here the step "
        "of training: R@1 changes by less than a point (in the paper, with all hyperparameters, by "
        "3.2 on CUB, 1.4 on Cars196 and 0.3 elsewhere).",
        "Appendix I, Table 9",
        "mpn:selection",
        ("best on test classes", "last step"),
        "equal",
        0.01,
    ),
    *(GROUP_LOSS if installed("group_loss") else ()),
    *((STUDENTS,) if installed("student") else ()),
)
