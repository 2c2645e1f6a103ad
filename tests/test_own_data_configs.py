"""Configurations for small data sets and custom image folders: every variant resolves, and one step
can be traced."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from configs.recipes import small_baseline
from dml_jax.config import files as config_files
from dml_jax.config import flatten, resolve
from dml_jax.methods import baseline
from dml_jax.methods.contract import Batch
from dml_jax.train import experiment as experiments
from dml_jax.train import step
from tests.data import layouts

ROOT = Path(__file__).parents[1]
KEPT = ("data", "backbone", "evaluation", "train.steps", "train.schedule", "train.evaluate_every")


def values(file: str, variant: str = "", **data: object) -> dict[str, object]:
    path = str(ROOT / "configs" / f"{file}.py") + (f":{variant}" if variant else "")
    found = config_files.load_config(path, {})
    found["data"].update(data)
    return found


def kept(settings: dict[str, object]) -> dict[str, object]:
    """The settings that all small experiments on a data set share."""
    return {key: value for key, value in flatten(settings).items() if key.startswith(KEPT)}


@pytest.mark.parametrize("data", ["omniglot", "digits"])
def test_every_loss_is_a_variant_that_changes_only_the_loss(data: str) -> None:
    found = {v: flatten(values(f"{data}_baseline", v)) for v in ("", *small_baseline.VARIANTS)}
    losses = {loss for settings in found.values() for loss in settings["method.loss"].split("+")}
    assert losses == set(baseline.LOSSES)
    for variant, settings in found.items():
        assert (settings["method.memory"] > 0) == variant.endswith("-memory")
        assert kept(settings) == kept(found[""])
    same = [variant for variant, settings in found.items() if settings | {"name": ""} == found[""] | {"name": ""}]
    assert same == ["", "normalized_softmax"]


def check_one_step_on_photos(name: str, variant: str, folder: Path) -> None:
    """The step of a configuration can be traced for a folder of photographs."""
    photos = layouts.photos(folder / "photos", tuple(f"class {i}" for i in range(16)), each=4)
    experiment = experiments.build(
        resolve(values(name, variant, name="folder", path=str(photos), batch_size=32, images_per_class=4))
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


def test_one_step_on_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    check_one_step_on_photos("omniglot_baseline", "margin-memory", tmp_path)
