"""Claims of DiVA (Milbich, Roth et al., ECCV 2020).

python -m benchmarks.claims diva --on=photos:lite0
"""

from typing import Any

from benchmarks.claims.ledger import Claim

TITLE = "DiVA"
ALL = "D + DaNCE + S + I"
MECHANISM: Any = {
    "placebos": ("permuted labels", "four equal heads"),
    "active": ("head_correlation", "below", 0.9),
}
CLAIMS = (
    *(
        Claim(
            name,
            says,
            "Section 4.1, Table 1",
            "diva:tasks",
            (fewer, more),
            **(MECHANISM if more == ALL else {}),
        )
        for name, fewer, more, says in (
            (
                "dance",
                "D",
                "D + DaNCE",
                "DaNCE improves on the discriminative task alone, by 0.9 points of R@1 on CUB.",
            ),
            (
                "shared",
                "D",
                "D + S",
                "The class-shared task improves on the discriminative task alone, by 1.5 points.",
            ),
            (
                "intra",
                "D",
                "D + I",
                "The intra-class task improves on the discriminative task alone, by 1.3 points.",
            ),
            (
                "all-tasks",
                "D",
                ALL,
                "All four tasks improve on the discriminative task alone, by 2.8 points.",
            ),
            (
                "fourth-task",
                "D + DaNCE + S",
                ALL,
                "Each added task improves: all four are better than D, DaNCE and S.",
            ),
        )
    ),
    Claim(
        "state-of-the-art",
        "DiVA is better than the methods of its time, here Proxy-Anchor.",
        "Section 4.2, Table 2",
        "diva:tasks",
        ("Proxy-Anchor", ALL),
        **MECHANISM,
    ),
    Claim(
        "dance-weights",
        "DaNCE is better than plain NCE.",
        "Section 4.3, Figure 4",
        "diva:self_supervision",
        ("NCE", "DaNCE"),
    ),
    Claim(
        "plain-nce",
        "Plain NCE is detrimental to learning.",
        "Section 4.3, Figure 4",
        "diva:self_supervision",
        ("baseline", "NCE"),
        "lower",
    ),
    Claim(
        "instance-discrimination",
        "DaNCE is better than instance discrimination.",
        "Section 4.3, Figure 4",
        "diva:self_supervision",
        ("instance discrimination, views", "DaNCE"),
    ),
    Claim(
        "discriminative-ensemble",
        "DiVA is better than an ensemble of discriminative learners.",
        "Section 4.3, Figure 4",
        "diva:self_supervision",
        ("discriminative ensemble", "DiVA"),
    ),
    Claim(
        "decorrelation",
        "Decorrelating the embeddings improves, by 0.8 points.",
        "Section 4.3, Table 3",
        "diva:separate",
        ("no decorrelation", "DiVA"),
    ),
    Claim(
        "without-decorrelation",
        "Without decorrelation, DiVA is still better than the margin loss alone, by 2 points.",
        "Section 4.3, Table 3",
        "diva:separate",
        ("baseline", "no decorrelation"),
    ),
    Claim(
        "separate-models",
        "Separate models for the tasks are far worse, by 18 points.",
        "Section 4.3, Table 3",
        "diva:separate",
        ("DiVA", "separate models"),
        "lower",
        0.05,
    ),
    Claim(
        "spectral-decay",
        "DiVA has a lower spectral decay than the discriminative task alone.",
        "Section 4.3, Figure 5",
        "diva:separate",
        ("baseline", "DiVA"),
        "lower",
        metric="spectral_decay",
    ),
)
