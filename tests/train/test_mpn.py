"""MPN in training: frozen groups."""

from dml_jax.methods import mpn
from tests.train import test_parameter_groups


def test_nothing_of_a_frozen_group_changes(patches: None) -> None:
    config = mpn.Config(embedding_dim=8, heads=2)
    test_parameter_groups.check_frozen(config, ("backbone", "mpn"), owners={"neck": "mpn"})
