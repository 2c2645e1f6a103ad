"""Claims of CRT (Kan et al., NeurIPS 2022).

python -m benchmarks.claims crt --on=photos:lite0
"""

from typing import Any

from benchmarks.claims.ledger import Claim

MECHANISM: Any = {
    "placebos": ("fixed prototypes", "shuffled residuals", "wide average pooling"),
    "active": ("prototype_divergence", "above", 0.05),
}
TITLE = "CRT"
CLAIMS = (
    Claim(
        "density",
        "CRT has a significantly higher embedding space density than the multi-similarity loss "
        "alone.",
        "Section 3.3, Table 1",
        "crt:components",
        ("multi-similarity loss alone", "CRT"),
        metric="density",
        **MECHANISM,
    ),
    Claim(
        "spectral-decay",
        "CRT has a much lower spectral decay than the multi-similarity loss alone.",
        "Section 3.3, Table 2",
        "crt:components",
        ("multi-similarity loss alone", "CRT"),
        "lower",
        metric="spectral_decay",
        **MECHANISM,
    ),
    Claim(
        "crt",
        "CRT improves retrieval over the multi-similarity loss alone, by 3.7 points of R@1 on CUB.",
        "Sections 4.3 and 4.4, Tables 5 and 6",
        "crt:components",
        ("multi-similarity loss alone", "CRT"),
        **MECHANISM,
    ),
    Claim(
        "state-of-the-art",
        "CRT is better than the methods of its time, here Proxy-Anchor: R@1 78.98 and 68.4 on CUB, "
        "with different backbones (65.78 with BN-Inception, as Proxy-Anchor).",
        "Section 4.2, Tables 3 to 5",
        "crt:components",
        ("Proxy-Anchor", "CRT"),
        **MECHANISM,
    ),
    Claim(
        "residuals",
        "Relative differences to prototypes are more effective than absolute features, by 2.0 "
        "points.",
        "Sections 1 and 4.4, Table 6",
        "crt:components",
        ("without residuals", "CRT"),
        **MECHANISM,
    ),
    Claim(
        "consistency",
        "The consistency of two branches improves the multi-similarity loss, by 1.7 points.",
        "Section 4.4, Table 6",
        "crt:components",
        ("multi-similarity loss alone", "without residuals"),
    ),
    Claim(
        "gamma",
        "One head per prototype is better than one for all, by 1.6 points.",
        "Section 4.4, Table 7",
        "crt:gamma",
        ("gamma=single", "gamma=per_prototype"),
    ),
    Claim(
        "first-prototypes",
        "The number of prototypes of the first branch hardly matters.",
        "Section 4.4, Table 8",
        "crt:first_prototypes",
        ("prototypes=1x16", "prototypes=16x16"),
        "equal",
        0.01,
        rows_on={"cub": ("prototypes=1x64", "prototypes=64x64")},
    ),
    Claim(
        "prototypes",
        "More prototypes in both branches are better, up to 64.",
        "Section 4.4, Table 9",
        "crt:prototypes",
        ("prototypes=1x1", "prototypes=64x64"),
    ),
    Claim(
        "few-prototypes",
        "From 1 to 16 prototypes, R@1 changes little (by 0.4 points).",
        "Section 4.4, Table 9",
        "crt:prototypes",
        ("prototypes=1x1", "prototypes=16x16"),
        "equal",
        0.01,
    ),
    Claim(
        "sharing",
        "With and without shared weights, performance is almost the same.",
        "Section 4.4, Table 10",
        "crt:sharing",
        ("sharing=separate", "sharing=shared"),
        "equal",
        0.01,
    ),
)
