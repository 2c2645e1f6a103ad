"""CRT: coded residual transform (Kan, Liang, Li, Cen, Wang, He, NeurIPS 2022).

    method     equations, `Config` and `build`
    figures    heat maps of the prototypes, for `dml-jax analyse`

The docstring of `method` has the equations and the expected results.
"""

from dml_jax.methods.crt.method import GROUPS, Config, build

__all__ = ["GROUPS", "Config", "build"]
