"""Configurations for Omniglot and one's own photographs: every variant resolves and trains a step's worth of shapes."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from dml_jax import command
from dml_jax import config as configs
from dml_jax.methods.contract import Batch
from dml_jax.train import experiment, step
from tests.data import layouts

ROOT = Path(__file__).parents[1]
CASES = [("omniglot_hist", ""), ("omniglot_baseline", ""), ("folder_baseline", "small"), ("folder_hist", "small")]
LARGE = [("folder_baseline", ""), ("folder_hist", "")]


def values(file: str, variant: str, **data: object) -> dict[str, object]:
    path = str(ROOT / "configs" / f"{file}.py") + (f":{variant}" if variant else "")
    found = command.load(path, {})
    found["data"].update(data)
    return found


@pytest.mark.parametrize(("name", "variant"), CASES + LARGE)
def test_resolves(name: str, variant: str) -> None:
    config = configs.resolve(values(name, variant))
    assert config.name == "-".join(filter(None, (name, variant)))
    assert config.data.crop == "random_resized"
    assert (config.data.jitter > 0) == name.startswith("folder")
    assert not (config.data.flip and name.startswith("omniglot"))  # a mirrored character is another one
    assert (config.backbone.pretrained == "none") == (name.startswith("omniglot") or variant == "small")


@pytest.mark.parametrize(("name", "variant"), CASES)
def test_one_step_on_photographs(name: str, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    photos = layouts.photos(tmp_path / "photos", tuple(f"class {i}" for i in range(16)), each=4)
    parts = experiment.build(
        configs.resolve(values(name, variant, name="folder", path=str(photos), batch_size=32, images_per_class=4))
    )
    assert parts.shape == (parts.config.data.image_size,) * 2
    update = step.build(parts.method, parts.optimizer)
    rows = jnp.zeros((32,), jnp.int32)
    batch = Batch(jnp.zeros((parts.method.views, 32, *parts.shape, 3), jnp.uint8), rows, rows)
    key = jax.random.key(0)
    state, terms = jax.eval_shape(lambda: update(step.initial(parts.method, parts.optimizer, key, batch), batch, key))
    assert terms["loss"].shape == ()
    assert state.step.shape == ()
