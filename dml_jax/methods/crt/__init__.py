"""CRT: coded residual transform (Kan, Liang, Li, Cen, Wang, He, NeurIPS 2022).

    method     equations, `Config` and `build`

The docstring of `method` has the equations and the expected results.
"""

from dml_jax.methods.crt.method import (
    BRANCHES,
    GROUPS,
    Branches,
    Config,
    MultiSimilarity,
    build,
    coded_residuals,
    diversity,
    loss,
    own_prototypes,
    prototype_statistics,
)

__all__ = [
    "BRANCHES", "GROUPS", "Branches", "Config", "MultiSimilarity", "build", "coded_residuals",
    "diversity", "loss", "own_prototypes",
    "prototype_statistics",
]  # fmt: skip
