"""HIST: hypergraph-induced semantic tuplet loss (Lim, Yun, Park, Choi, CVPR 2022).

    method         equations, `Config` and `build`
    checkpoints    the authors' checkpoints, for `dml-jax convert`

The docstring of `method` has the equations and the expected results.
"""

from dml_jax.methods.hist.method import (
    GROUPS,
    Config,
    Distributions,
    Embedding,
    HypergraphNetwork,
    build,
    classify,
    distances,
    distribution_loss,
    incidence,
    loss,
    placebo_incidence,
    propagation,
    tuplet_statistics,
)

__all__ = [
    "GROUPS",
    "Config",
    "Distributions",
    "Embedding",
    "HypergraphNetwork",
    "build",
    "classify",
    "distances",
    "distribution_loss",
    "incidence",
    "loss",
    "placebo_incidence",
    "propagation",
    "tuplet_statistics",
]
