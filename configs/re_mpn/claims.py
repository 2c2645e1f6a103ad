"""Claims of the reproduction of MPN ([Re] Learning Intra-Batch Connections, MLRC).

dml-jax study --claims=re_mpn --on=photos
"""

from dml_jax.lab.definition import Claim

TITLE = "MPN: its reproduction"
CLAIMS = (
    Claim(
        "claim-1",
        "Message passing on top of the backbone improves its embeddings.",
        "Section 2, claim 1",
        "mpn:losses",
        ("auxiliary loss", "both losses"),
    ),
    Claim(
        "claim-2",
        "With and without message passing at test time, R@1 is very similar (within half a "
        "point): claim 2 of the "
        "authors can be neither supported nor opposed.",
        "Section 5",
        "mpn:losses",
        ("both losses", "both losses + reciprocal"),
        "equal",
        0.005,
    ),
    Claim(
        "test-time-nmi",
        "Message passing at test time improves the NMI, by 0.7 to 3.1 points.",
        "Section 4.2.1, Table 3",
        "mpn:losses",
        ("both losses", "both losses + reciprocal"),
        metric="nmi",
    ),
    *(
        Claim(
            f"test-time-recall-{k}",
            f"Message passing at test time lowers R@{k}.",
            "Section 4.2.1, Table 3",
            "mpn:losses",
            ("both losses", "both losses + reciprocal"),
            "lower",
            metric=f"recall@{k}",
        )
        for k in (2, 4, 8)
    ),
    Claim(
        "attention",
        "Attention is used: its divergence from uniform weights grows in training (here by more "
        "than 0.05 nats).",
        "Section 4.2.2, Figure 1",
        "mpn:attention",
        ("untrained", "trained"),
        margin=0.05,
        metric="attention_divergence",
    ),
    Claim(
        "own-class",
        "Nodes attend to nodes of the same class more strongly than to others.",
        "Section 4.2.2, Figure 2",
        "mpn:attention",
        ("untrained", "trained"),
        metric="attention_own_class",
    ),
    Claim(
        "two-heads",
        "Using several heads is useful: two are better than one.",
        "Section 4.2.2",
        "mpn:layers_heads",
        ("layers=1 heads=1", "layers=1 heads=2"),
    ),
)
