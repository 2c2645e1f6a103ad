"""HIST in training: frozen groups, and its step for accelerators."""

import pytest

from dml_jax.methods import hist
from tests import test_configs
from tests.lab import test_compilation
from tests.train import test_parameter_groups


def test_nothing_of_a_frozen_group_changes(patches: None) -> None:
    test_parameter_groups.check_frozen(
        hist.Config(embedding_dim=8, hidden_dim=8), ("hgnn", "embedding")
    )


@pytest.mark.parametrize("name", test_compilation.first_is_fast(test_configs.names("hist")))
def test_a_float32_step_lowers_for_accelerators_in_float32(name: str) -> None:
    test_compilation.check_lowers_in_float32(name)
