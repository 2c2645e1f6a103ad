"""Every paper's method passes `dml-jax check`, but for what it says of itself."""

import pytest

from dml_jax.lab import conformance, plugins
from tests.contract.methods import SMALL


def examined(method: str) -> dict[str, str]:
    """Outcomes by check, without training; the name of a method of this package is no import path."""
    outcomes = conformance.check(*plugins.find_plugins(f"dml_jax.methods.{method}")[0], {}, None)
    return {one.check: one.result for one in outcomes if one.check != conformance.NAMED}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, case in SMALL.items() if case.examined])
def test_all_checks_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A method whose gradients are reversed differs by this alone."""
    reverses, found = SMALL[name].reverses, examined(name)
    if reverses:
        assert found.pop(conformance.GRADIENT) == "skipped"
    assert set(found.values()) == {"passed"}
    if reverses:
        monkeypatch.setattr(reverses, lambda x: x)
        assert examined(name)[conformance.GRADIENT] == "passed"
