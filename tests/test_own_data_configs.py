"""Configurations for small data sets and custom image folders: every variant resolves, and one step can be traced."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from configs.recipes import small_baseline
from dml_jax import config as configs
from dml_jax.config import files as config_files
from dml_jax.config import flatten
from dml_jax.methods import baseline
from dml_jax.methods.contract import Batch
from dml_jax.train import experiment as experiments
from dml_jax.train import step
from tests.data import layouts

ROOT = Path(__file__).parents[1]
CASES = [("omniglot_baseline", "margin-memory"), ("omniglot_group_loss", ""), ("folder_hist", "small")]


def values(file: str, variant: str, **data: object) -> dict[str, object]:
    path = str(ROOT / "configs" / f"{file}.py") + (f":{variant}" if variant else "")
    found = config_files.load_config(path, {})
    found["data"].update(data)
    return found


@pytest.mark.parametrize("data", ["omniglot", "digits"])
def test_every_loss_is_a_variant_that_changes_only_the_loss(data: str) -> None:
    kept = ("data", "backbone", "evaluation", "train.steps", "train.schedule", "train.evaluate_every")
    found = {v: flatten(values(f"{data}_baseline", v)) for v in ("", *small_baseline.VARIANTS)}
    losses = {loss for settings in found.values() for loss in settings["method.loss"].split("+")}
    assert losses == set(baseline.LOSSES)
    expected = flatten(values(f"{data}_hist", ""))
    for variant, settings in found.items():
        assert (settings["method.memory"] > 0) == variant.endswith("-memory")
        assert {k: v for k, v in settings.items() if k.startswith(kept)} == {
            k: v for k, v in expected.items() if k.startswith(kept)
        }
    same = [variant for variant, settings in found.items() if settings | {"name": ""} == found[""] | {"name": ""}]
    assert same == ["", "normalized_softmax"]


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_one_step_on_photos(name: str, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    photos = layouts.photos(tmp_path / "photos", tuple(f"class {i}" for i in range(16)), each=4)
    experiment = experiments.build(
        configs.resolve(values(name, variant, name="folder", path=str(photos), batch_size=32, images_per_class=4))
    )
    assert experiment.shape == (experiment.config.data.image_size,) * 2
    update = step.build(experiment.method, experiment.optimizer, experiment.augment)
    rows = jnp.zeros((32,), jnp.int32)
    batch = Batch(jnp.zeros((experiment.method.hooks.views, 32, *experiment.shape, 3), jnp.uint8), rows, rows)
    key = jax.random.key(0)
    state, terms = jax.eval_shape(
        lambda: update(step.initial(experiment.method, experiment.optimizer, key, batch), batch, key)
    )
    assert terms["loss"].shape == ()
    assert state.step.shape == ()
