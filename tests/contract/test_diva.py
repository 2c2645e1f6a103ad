"""DiVA differs from what `dml-jax check` asks for by its reversed gradients."""

import pytest

from dml_jax.lab import conformance
from tests.contract.conforming import examined


@pytest.mark.slow
def test_diva_differs_by_its_reversed_gradients_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    reversed_gradients = examined("diva")
    other = {name: one.result for name, one in reversed_gradients.items() if one.result != "passed"}
    assert other == {conformance.GRADIENT: "skipped"}
    monkeypatch.setattr("dml_jax.methods.diva.equations.reverse_gradient", lambda x: x)
    assert examined("diva")[conformance.GRADIENT].result == "passed"
