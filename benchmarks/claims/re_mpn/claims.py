"""Claims of the reproduction of MPN ([Re] Learning Intra-Batch Connections, MLRC).

python -m benchmarks.claims re_mpn --on=photos:lite0
"""

from typing import Any

from benchmarks.claims.ledger import Claim

TITLE = "MPN: its reproduction"
ACTIVE: Any = {"active": ("attention_divergence", "above", 0.05)}
CLAIMS = (
    *(
        Claim(
            f"special-losses-{name}",
            "Message passing and cross-entropy make special losses unnecessary: R@1 is at most a "
            f"point below {text}.",
            "Section 2, claim 1",
            "mpn:losses",
            (text, "both losses"),
            margin=-0.01,
            **ACTIVE,
        )
        for name, text in (("proxies", "Proxy-Anchor"), ("pairs", "multi-similarity"))
    ),
    Claim(
        "claim-2",
        "With and without message passing at test time, R@1 is very similar (within half a "
        "point): claim 2 of the authors can be neither supported nor opposed.",
        "Section 5",
        "mpn:losses",
        ("both losses", "both losses + reciprocal"),
        "equal",
        0.005,
        **ACTIVE,
    ),
    Claim(
        "test-time-nmi",
        "Message passing at test time improves the NMI, by 0.7 to 3.1 points.",
        "Section 4.2.1, Table 3",
        "mpn:losses",
        ("both losses", "both losses + reciprocal"),
        metric="nmi",
        **ACTIVE,
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
            **ACTIVE,
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
        "Nodes attend to nodes of the same class more strongly than to others (by N times the "
        "difference of mean weights; 0 with uniform weights).",
        "Section 4.2.2, Figure 2",
        "mpn:losses",
        ("uniform weights", "both losses"),
        margin=0.05,
        metric="attention_preference",
    ),
    Claim(
        "two-heads",
        "Using several heads is useful: two are better than one.",
        "Section 4.2.2",
        "mpn:layers_heads",
        ("layers=1 heads=1", "layers=1 heads=2"),
        **ACTIVE,
    ),
)
