"""The configurations of the project, and what the tests check of all of them beside their values."""

import importlib
from functools import cache
from pathlib import Path
from types import ModuleType

import jax
import jax.numpy as jnp

from dml_jax.config import Config, flatten, resolve
from dml_jax.config import files as config_files
from dml_jax.methods import baseline
from dml_jax.methods.contract import Batch
from dml_jax.train import experiment as experiments
from dml_jax.train import step
from tests.config.cases import Facts, of_papers
from tests.data import layouts
from tests.papers import ROOT, paper_of

KEPT = ("data", "backbone", "evaluation", "train.steps", "train.schedule", "train.evaluate_every")
CLASSES = {"cub": 100, "cars": 98, "sop": 11_318, "inshop": 3_997}  # in training
PAIRS = {*baseline.PAIR_LOSSES} - {"margin"}  # without parameters of their own
FACTS: dict[str | None, Facts] = {  # of the configurations that belong to no paper, and of papers
    None: Facts(
        files=[f"{data}_baseline" for data in CLASSES],
        number=200,
        weights={"dino_vits16", "dinov2_vits14", "lite0", "resnet50", "vit_small"},
        unused=lambda method: {"loss"} if getattr(method, "loss", "") in PAIRS else set(),
    ),
    **of_papers(),
}


def names(paper: str) -> list[str]:
    """The configurations of a paper for the data sets on which papers report results."""
    return [f"{data}_{paper}" for data in CLASSES if (ROOT / "configs" / f"{data}_{paper}.py").exists()]


def module(name: str) -> ModuleType:
    return importlib.import_module(f"configs.{name}")


@cache
def resolved(name: str, variant: str = "", protocol: str | None = None) -> Config:
    """A configuration, which must have no option without effect, unless a paper's facts say so."""
    path = str(ROOT / "configs" / f"{name}.py") + (f":{variant}" if variant else "")
    late = any(f"{name}:{variant}" in facts.late for facts in FACTS.values())
    warnings: list[str] = []
    config = config_files.resolved(path, {}, warnings.append, protocol)
    expected = ["train.milestones"] if late else []
    assert [text.partition("=")[0] for text in warnings] == expected, f"{path}: {warnings}"
    return config


def variants(name: str) -> tuple[str, ...]:
    return ("", *getattr(module(name), "VARIANTS", ()))


def configurations(paper: str | None = None) -> list[tuple[str, str]]:
    """(file, variant) of all configurations of a paper, or of those that belong to none."""
    files = [path for path in (ROOT / "configs").glob("*.py") if "get_config" in path.read_text()]
    return [(file.stem, variant) for file in files if paper_of(file.name) == paper for variant in variants(file.stem)]


def values(file: str, variant: str = "", **data: object) -> dict[str, object]:
    path = str(ROOT / "configs" / f"{file}.py") + (f":{variant}" if variant else "")
    found = config_files.load_config(path, {})
    found["data"].update(data)
    return found


def kept(settings: dict[str, object]) -> dict[str, object]:
    """The settings that all small experiments on a data set share."""
    return {key: value for key, value in flatten(settings).items() if key.startswith(KEPT)}


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
