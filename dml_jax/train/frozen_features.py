"""Training on features of a frozen backbone, computed once: minutes of training become seconds.

Each training image is embedded once with the evaluation's crop and a few times with random crops
and flips. Batches are drawn as usual; each image contributes one of its views. Export, inference
and evaluation run the whole network. Features are stored in `train.features`, or next to the work
directory, under the digest of everything that determines them: the network and its variables, the
images and the options of crops. Crops do not depend on the seed of the run, so all seeds, heads and
methods share them.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax import identity, seal
from dml_jax.backbones.functional import pooled_cells
from dml_jax.config import Config, Data, plugin_module
from dml_jax.console import Console
from dml_jax.data import arrays, transforms
from dml_jax.data.split import Split
from dml_jax.errors import ConfigError
from dml_jax.methods.contract import Embed, PyTree
from dml_jax.train import warm_start
from dml_jax.train.distributed import device_mesh
from dml_jax.train.distributed.stop_signals import Stop
from dml_jax.train.embedding import Embedder, Variables
from dml_jax.train.experiment import Experiment
from dml_jax.train.method_wrappers import backbone_products
from dml_jax.train.step import TrainState, digest

DIRECTORY = "features"  # next to the work directory
KIND, FILE = "features of a frozen network", "features.npy"
CROP_SEED = 0  # of the random crops
# Options that determine random crops, in addition to those of evaluation.
CROPS = ("crop", "resize_first", "crop_scale", "crop_ratio", "flip")
TOLERANCE = 1e-3  # between the unit embeddings of a feature map and of its two cells


def with_features(
    experiment: Experiment, directory: Path, console: Console, stop: Stop
) -> Experiment:
    """The experiment with its features, stored next to the work directory, if it trains on them."""
    config = experiment.config
    if not config.train.feature_views:
        return experiment
    state = warm_start.initial_state(experiment, console)
    check(experiment, state)
    count = config.train.feature_views
    console.start_progress("features", count * len(experiment.splits["train"].labels))

    def report_progress(done: int) -> None:
        console.update_progress(done, "of the frozen backbone")
        stop.raise_if_stopped()

    folder = Path(config.train.features or directory.absolute().parent / DIRECTORY)
    features = cells(experiment, state, "train", folder, report_progress)
    return experiment._replace(features=features, augment=lambda images, key: images)


def cells(
    experiment: Experiment,
    state: Variables,
    name: str,
    directory: Path,
    on_progress: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """The features float32 [N, views, 1, 2, K] of a split, stored in a directory.

    Training images have `train.feature_views` views, others only the evaluation's. Runs, studies
    and benchmarks that name the same directory share its files. `state` belongs to the experiment,
    which trains on features.
    """
    embedder, split = experiment.embedder(_features(experiment.config)), experiment.splits[name]
    count = experiment.config.train.feature_views if name == "train" else 1
    stem = directory / f"{key(experiment, state.model_state['backbone'])}-cells-{name}"
    return np.stack(views(embedder, state, split, count, stem, on_progress), axis=1)


def views(
    embedder: Embedder,
    model: Variables,
    split: Split,
    count: int,
    stem: Path,
    on_progress: Callable[[int], None] = lambda done: None,
    dtype: type[np.floating[Any]] = np.float32,
) -> list[np.ndarray]:
    """The outputs [N, ...] of `count` views of all images: the evaluation's, then random crops.

    View i is stored in the directory `<stem>-<i>`, from which a single process loads it.
    """
    without_crop = replace(embedder.data, crop="none", image_size=0, resize=0, training_size=0)
    uncropped = embedder._replace(data=without_crop)
    if device_mesh.is_main_process():  # fails before the long computation
        stem.parent.mkdir(parents=True, exist_ok=True)
    rows_by_view = []
    for view in range(count):
        folder, offset = stem.with_name(f"{stem.name}-{view}"), view * len(split.labels)
        if folder.exists() and jax.process_count() == 1:
            seal.read(folder, KIND, remedy=f"delete {folder} to compute the features again")
            rows_by_view.append(np.load(folder / FILE, mmap_mode="r", allow_pickle=False))
            continue
        source = crops(split, embedder.data, view) if view else split
        report = partial(lambda offset, done: on_progress(offset + done), offset)
        rows = (uncropped if view else embedder).embed_split(model, source, report).astype(dtype)
        if device_mesh.is_main_process():
            with seal.write(folder, KIND) as draft:
                np.save(draft / FILE, rows)
        rows_by_view.append(rows)
    return rows_by_view


def _features(config: Config) -> Embed:
    backbone = plugin_module("backbone", config.backbone.name).build(config.backbone)
    precision = backbone_products(config.train.precision)

    def compute(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array:
        variables, inputs = model_state["backbone"], backbone.preprocess(images)
        with jax.default_matmul_precision(precision):
            return pooled_cells(backbone.apply(variables, variables, inputs, train=False)[0])

    return compute


def crops(split: Split, data: Data, view: int) -> Split:
    """Random crops of a split in the size of evaluation images; the same on every call."""
    crop = transforms.training(replace(data, training_size=0))

    def read(index: int, rng: np.random.Generator | None) -> np.ndarray:
        fixed = np.random.default_rng((CROP_SEED, index, view))
        image = crop(split.read(index, fixed), fixed)
        return image[:, ::-1] if fixed.random() < data.flip else image

    return split._replace(read=read)


def check(experiment: Experiment, state: TrainState) -> None:
    """Raises ConfigError unless the method embeds features and their images equally."""
    config, embed = experiment.config, experiment.method.embed
    compute = _features(config)

    def embed_both(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array:
        inputs = images, compute(params, model_state, images)
        return jnp.stack([embed(params, model_state, each) for each in inputs], axis=1)

    pixels = arrays.random(experiment.shape, 1)
    image_embedding, features_embedding = np.asarray(
        experiment.embedder(embed_both).start(state, pixels)
    )[0]
    if not np.allclose(image_embedding, features_embedding, atol=TOLERANCE):
        raise ConfigError(
            f"train.feature_views={config.train.feature_views}: method {config.method.name} needs "
            "whole feature maps, not pooled features; set it to 0, or choose another method"
        )


def key(experiment: Experiment, backbone: PyTree) -> str:
    """Digest of everything that determines features.

    `backbone` is the tree of all variables of the network, as in a method on features.
    """
    config = experiment.config
    network = identity.describe(
        config.data,
        experiment.shape,
        config.backbone,
        None,
        identity.Versions(),
        precision=config.train.precision,
    )
    has_crops = config.train.feature_views > 1
    facts = {
        "network": network,
        "variables": digest(backbone),
        "data": experiment.data_hash,
        "crops": {name: getattr(config.data, name) for name in CROPS if has_crops},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
