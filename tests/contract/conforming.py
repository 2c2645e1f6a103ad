"""The checks of `dml-jax check` for a method of this package."""

from dml_jax.lab import conformance, plugins


def examined(method: str) -> dict[str, conformance.Outcome]:
    """Outcomes by check, without training; the name of a method of this package is no import
    path."""
    outcomes = conformance.check(*plugins.find_plugins(f"dml_jax.methods.{method}")[0], {}, None)
    return {one.check: one for one in outcomes if one.check != conformance.NAMED}
