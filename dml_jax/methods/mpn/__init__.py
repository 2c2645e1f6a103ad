"""MPN: learning intra-batch connections (Seidenschwarz, Elezi, Leal-Taixé, ICML 2021).

    method         equations, `Config` and `build`
    checkpoints    the authors' checkpoints, for `dml-jax convert`
    figures        attention and influence, for `dml-jax analyse`

The docstring of `method` has the equations and the expected results.
"""

from dml_jax.methods.mpn.method import GROUPS, Config, build

__all__ = ["GROUPS", "Config", "build"]
