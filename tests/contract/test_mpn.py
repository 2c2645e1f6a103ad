"""MPN passes `dml-jax check`, and trains with its classes spread over devices."""

import pytest

from dml_jax.methods import mpn
from tests import toys
from tests.contract.conforming import examined
from tests.train import test_class_tables


@pytest.mark.slow
def test_eight_devices_with_a_share_of_the_classes_are_one_with_all() -> None:
    config = mpn.Config(embedding_dim=test_class_tables.DIM, heads=2, layers=1, dropout=0.0)
    test_class_tables.check_a_share_of_the_classes(
        lambda classes: mpn.build(config, toys.backbone(), toys.training_set(classes))
    )


@pytest.mark.slow
def test_all_checks_pass() -> None:
    assert {one.result for one in examined("mpn").values()} == {"passed"}
