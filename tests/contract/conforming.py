"""The checks of `dml-jax check` for a method of this package."""

from dml_jax.commands import check
from dml_jax.lab import conformance


def examined(method: str) -> dict[str, conformance.Outcome]:
    """Outcomes by check, without training; the name of a method of this package is no import
    path."""
    outcomes = conformance.check(*check.found(f"dml_jax.methods.{method}", None)[0], {}, None)
    return {one.check: one for one in outcomes if one.check != "name"}
