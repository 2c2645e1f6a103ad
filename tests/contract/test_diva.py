"""DiVA differs from what `dml-jax check` asks for by its reversed gradients; classes spread over
devices."""

import pytest

from dml_jax.lab import conformance
from dml_jax.methods import diva
from tests import toys
from tests.contract.conforming import examined
from tests.train import test_class_tables


@pytest.mark.slow
def test_eight_devices_with_a_share_of_the_classes_are_one_with_all() -> None:
    config = diva.Config(embedding_dim=test_class_tables.DIM, queue_batches=2)
    test_class_tables.check_a_share_of_the_classes(
        lambda classes: diva.build(config, toys.backbone(), toys.training_set(classes))
    )


@pytest.mark.slow
def test_diva_differs_by_its_reversed_gradients_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    reversed_gradients = examined("diva")
    assert [name for name, one in reversed_gradients.items() if one.result != "passed"] == [
        "gradient"
    ]
    assert "stop_gradient" in reversed_gradients["gradient"].text
    monkeypatch.setattr("dml_jax.methods.diva.equations.reverse_gradient", lambda x: x)
    assert examined("diva")["gradient"] == conformance.Outcome("gradient")
