"""CRT in training without whole feature maps."""

from dataclasses import asdict
from pathlib import Path

import pytest

from dml_jax.config import Group, resolve
from dml_jax.errors import ConfigError
from dml_jax.methods import crt
from dml_jax.train import experiment as experiments
from tests.train.experiments import values
from tests.train.test_frozen_features import with_features


@pytest.mark.usefixtures("few_images", "patches")
def test_pooled_features_are_refused(tmp_path: Path) -> None:
    given = values(steps=1, feature_views=1)
    given["method"] = asdict(crt.Config(embedding_dims=(4, 4), prototypes=(4, 4), hidden_dim=4))
    given["train"]["groups"] = {name: asdict(Group(1e-2)) for name in crt.GROUPS}
    given["train"]["groups"]["backbone"] = asdict(Group(0.0, freeze=True))
    experiment = experiments.build(resolve(given))
    with pytest.raises(ConfigError, match="feature_views=1: method crt needs whole feature maps"):
        with_features(experiment, tmp_path)
