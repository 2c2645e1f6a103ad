"""HIST in training: frozen groups."""

from dml_jax.methods import hist
from tests.train import test_parameter_groups


def test_nothing_of_a_frozen_group_changes(patches: None) -> None:
    test_parameter_groups.check_frozen(hist.Config(embedding_dim=8, hidden_dim=8), ("hgnn", "embedding"))
