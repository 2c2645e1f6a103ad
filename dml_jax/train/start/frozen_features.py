"""Training on features of a frozen backbone, which are computed once: minutes of training become seconds.

Each training image passes through the backbone as in evaluation and as some random crops, augmented and flipped at
random. Batches are drawn as usual; each image of a batch contributes one of its views. Export, inference and evaluation
run the whole network. The features are kept in the work directory, under the digest of everything that determines them.
"""

import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax import config as configs
from dml_jax import files
from dml_jax.backbones.contract import optional
from dml_jax.backbones.linen import pooled_cells
from dml_jax.config import Config, Data
from dml_jax.console import Console
from dml_jax.data import transforms
from dml_jax.data.split import Split
from dml_jax.errors import ConfigError
from dml_jax.methods.contract import Embed, PyTree
from dml_jax.train import experiment as experiments
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.distributed.stop_signals import Stop
from dml_jax.train.evaluation import embedding
from dml_jax.train.experiment import Experiment
from dml_jax.train.start import warm_start
from dml_jax.train.state import TrainState, fingerprint

DIRECTORY = "features"  # in the work directory
# Options of the data that determine features.
CROPS = (
    *("crop", "image_size", "resize", "interpolation", "resize_first", "decode_scaled"),
    *("crop_scale", "crop_ratio", "flip"),
)
TOLERANCE = 1e-3  # of an embedding of unit length, between a feature map and its two cells


def with_features(experiment: Experiment, directory: Path, console: Console, stop: Stop) -> Experiment:
    """The experiment with the features that its batches consist of, if it trains on features; kept in `directory`."""
    config = experiment.config
    if not config.train.feature_views:
        return experiment
    state = warm_start.initial_state(experiment, console)
    features = _features(config)
    _check_method(experiment, features, state)
    embedder = embedding.compile_embedder(features, experiment.mesh, config)
    split, data = experiment.splits["train"], config.data
    digest = _digest(experiment, state)
    uncropped = replace(data, crop="none", image_size=0, resize=0, training_size=0)
    cropped = embedder._replace(data=uncropped)
    views = []
    for view in range(config.train.feature_views):
        path = directory / DIRECTORY / f"{digest}-{view}.npy"
        if path.exists() and jax.process_count() == 1:
            with files.reading(path, "remove it"):
                views.append(np.load(path, allow_pickle=False))
            continue
        done = view * len(split.labels)
        console.start_progress("features", config.train.feature_views * len(split.labels), done)

        def shown(count: int, before: int = done) -> None:
            console.update_progress(before + count, "of the frozen backbone")
            stop.raise_if_stopped()

        if view == 0:
            rows = embedding.embed_split(embedder, state, split, shown)
        else:
            rows = embedding.embed_split(cropped, state, _crops(split, data, config.seed, view), shown)
        if meshes.is_main_process():
            path.parent.mkdir(parents=True, exist_ok=True)
            with files.atomic_write(path) as draft, draft.open("wb") as file:
                np.save(file, rows)
        views.append(rows)
    return experiment._replace(features=np.stack(views, axis=1), augment=lambda images, key: images)


def _features(config: Config) -> Embed:
    backbone = configs.module("backbone", config.backbone.name).build(config.backbone)

    def compute(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array:
        variables = model_state["backbone"]
        return pooled_cells(backbone.apply(variables, variables, backbone.preprocess(images), train=False)[0])

    return compute


def _crops(split: Split, data: Data, seed: int, view: int) -> Split:
    """Random crops of a split, the same ones whenever they are read, as large as the images of the evaluation."""
    crop = transforms.training(replace(data, training_size=0))

    def read(index: int, rng: np.random.Generator | None) -> np.ndarray:
        own = np.random.default_rng((seed, index, view))
        image = crop(split.read(index, own), own)
        return image[:, ::-1] if own.random() < data.flip else image

    return split._replace(read=read, gallery=None)


def _check_method(experiment: Experiment, compute: Embed, state: TrainState) -> None:
    """Raises ConfigError unless embeddings of features are those of the images they were computed from."""
    embed = experiment.method.embed

    def both(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array:
        features = compute(params, model_state, images)
        return jnp.stack([embed(params, model_state, inputs) for inputs in (images, features)])

    pixels = np.random.default_rng(0).integers(0, 256, (jax.device_count(), *experiment.shape, 3), np.uint8)
    rows = jax.make_array_from_process_local_data(meshes.row_sharded(experiment.mesh), pixels, pixels.shape)
    embedder = embedding.compile_embedder(both, experiment.mesh, experiment.config)
    images, features = np.asarray(embedder.compute(state.params, state.model_state, rows))
    if not np.allclose(images, features, atol=TOLERANCE):
        raise ConfigError(
            f"train.feature_views={experiment.config.train.feature_views}: method {experiment.config.method.name} "
            "needs whole feature maps, not pooled features; set it to 0, or choose another method"
        )


def _digest(experiment: Experiment, state: TrainState) -> str:
    config = experiment.config
    facts = {
        "data": experiments.data_hash(experiment.splits),
        "backbone": fingerprint(state.model_state["backbone"]),
        "pixels": asdict(config.backbone.pixels),
        "dtype": optional(config.backbone).dtype,
        "crops": {key: getattr(config.data, key) for key in CROPS},
        "seed": config.seed,
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
