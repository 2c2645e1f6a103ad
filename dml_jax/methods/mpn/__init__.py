"""MPN: learning intra-batch connections (Seidenschwarz, Elezi, Leal-Taixé, ICML 2021).

    method         equations, `Config` and `build`
    checkpoints    the authors' checkpoints, for `dml-jax convert`

The docstring of `method` has the equations and the expected results.
"""

from dml_jax.methods.mpn.method import (
    GROUPS,
    AttentionStatistics,
    Config,
    Equations,
    MessagePassingLayer,
    MessagePassingNetwork,
    attention,
    attention_statistics,
    batch_attention,
    build,
    loss,
    normalise_rows,
    placebo_weights,
    readout,
    refine,
)

__all__ = [
    "GROUPS",
    "AttentionStatistics",
    "Config",
    "Equations",
    "MessagePassingLayer",
    "MessagePassingNetwork",
    "attention",
    "attention_statistics",
    "batch_attention",
    "build",
    "loss",
    "normalise_rows",
    "placebo_weights",
    "readout",
    "refine",
]
