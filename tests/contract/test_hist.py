"""HIST passes `dml-jax check`, and trains with its classes spread over devices."""

import pytest

from dml_jax.methods import hist
from dml_jax.methods.contract import Method
from tests import toys
from tests.contract.conforming import examined
from tests.train import test_class_tables


def build(classes: int) -> Method:
    config = hist.Config(embedding_dim=test_class_tables.DIM, hidden_dim=8)
    return hist.build(config, toys.backbone(), toys.training_set(classes))


def test_eight_devices_with_a_share_of_the_classes_are_one_with_all() -> None:
    test_class_tables.check_a_share_of_the_classes(build)


def test_a_million_classes_take_an_eighth_of_the_memory_and_little_traffic() -> None:
    test_class_tables.check_a_million_classes(build)


@pytest.mark.slow
def test_all_checks_pass() -> None:
    assert {one.result for one in examined("hist").values()} == {"passed"}
