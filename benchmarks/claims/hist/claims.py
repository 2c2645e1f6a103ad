"""Claims about HIST, as its reproduction lists and tests them (Yuan et al., MLRC 2022).

    python -m benchmarks.claims hist --on=photos:lite0

Claims 1 and 2 of the authors hold "regardless" of the batch size and of the layers; the
reproduction limits both.
"""

from typing import Any

from benchmarks.claims.ledger import Claim

MECHANISM: Any = {
    "placebos": ("random tuplets", "permuted tuplets", "no hyperedges"),
    "active": ("tuplet_divergence", "above", 0.05),
}
TITLE = "HIST, and its reproduction"
CLAIMS = (
    Claim(
        "batch-size",
        "HIST performs consistently regardless of the batch size; the reproduction: from 32 on.",
        "Section 4.1, claim 1, Figure 2a",
        "hist:batch_size",
        ("batch_size=32", "batch_size=128"),
        "equal",
        0.01,
        rows_on={"lite0": ("batch_size=32", "batch_size=100")},  # a folder may have 25 classes
    ),
    Claim(
        "small-batches",
        "With batches of 8 or 16, performance drops.",
        "Section 4.1, claim 1, Figure 2a",
        "hist:batch_size",
        ("batch_size=64", "batch_size=8"),
        "lower",
        0.005,
    ),
    Claim(
        "layers",
        "With two or more hidden layers of the hypergraph network, R@1 falls by about 3 points.",
        "Section 4.1, claim 2, Figure 2b",
        "hist:layers",
        ("hidden_layers=1", "hidden_layers=3"),
        "lower",
        0.005,
    ),
    Claim(
        "positive-alpha",
        "HIST is insensitive to a positive alpha.",
        "Section 4.1, claim 3, Figure 2c",
        "hist:alpha",
        ("alpha=0.9", "alpha=2"),
        "equal",
        0.01,
    ),
    Claim(
        "negative-alpha",
        "A positive alpha contributes to reliable performance, a negative one does not.",
        "Section 2, claim 3",
        "hist:alpha",
        ("alpha=1", "alpha=-1"),
        "lower",
    ),
    Claim(
        "tau",
        "Performance is consistent from tau = 16 on.",
        "Section 4.1, claim 4, Figure 3b",
        "hist:tau_lambda",
        ("tau=16 lambda_s=1", "tau=32 lambda_s=1"),
        "equal",
        0.01,
        rows_on={"omniglot": ("tau=10 lambda_s=1", "tau=20 lambda_s=1")},
    ),
    Claim(
        "small-tau",
        "With tau = 8, performance drops by 7 to 10 points.",
        "Section 4.1, claim 4, Figure 3b",
        "hist:tau_lambda",
        ("tau=16 lambda_s=1", "tau=8 lambda_s=1"),
        "lower",
        0.01,
        rows_on={"omniglot": ("tau=10 lambda_s=1", "tau=5 lambda_s=1")},
    ),
    Claim(
        "lambda",
        "With tau above 16, HIST is insensitive to lambda_s.",
        "Section 4.1, claim 4, Figure 3b",
        "hist:tau_lambda",
        ("tau=24 lambda_s=0.6", "tau=24 lambda_s=2"),
        "equal",
        0.01,
        rows_on={"omniglot": ("tau=20 lambda_s=0.6", "tau=20 lambda_s=2")},
    ),
    Claim(
        "proxy-anchor",
        "HIST is better than Proxy-Anchor.",
        "Section 4.1, claim 5, Table 3",
        "hist:baselines",
        ("Proxy-Anchor", "HIST"),
        **MECHANISM,
    ),
    Claim(
        "multi-similarity",
        "HIST is better than the multi-similarity loss.",
        "Section 4.1, claim 5, Table 3",
        "hist:baselines",
        ("multi-similarity", "HIST"),
        **MECHANISM,
    ),
    Claim(
        "hyperedges",
        "Propagation over the hyperedges is what helps: without them, R@1 is lower.",
        "Section 2 (the authors' Section 3.3)",
        "hist:baselines",
        ("no hyperedges", "HIST"),
        placebos=("random tuplets", "permuted tuplets"),
        active=("tuplet_divergence", "above", 0.05),
    ),
    Claim(
        "sizes",
        "If embedding and hypergraph network are both small (256), the representation is "
        "constrained.",
        "Section 4.2, Figure 3a",
        "hist:sizes",
        ("embedding_dim=512 hidden_dim=512", "embedding_dim=256 hidden_dim=256"),
        "lower",
        rows_on={"omniglot": ("embedding_dim=64 hidden_dim=64", "embedding_dim=32 hidden_dim=32")},
    ),
    Claim(
        "distances",
        "Deviations under other distances to the class distributions are insignificant.",
        "Section 4.2, Table 4",
        "hist:distances",
        ("distance=mahalanobis", "distance=euclidean"),
        "equal",
        0.01,
    ),
)
