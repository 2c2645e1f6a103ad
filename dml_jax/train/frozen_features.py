"""Training on features of a frozen backbone, computed once: minutes of training become seconds.

Each training image passes through the backbone as in evaluation and as some random crops, augmented
and flipped at random. Batches are drawn as usual; each image of a batch contributes one of its
views. Export, inference and evaluation run the whole network. The features are kept in
`train.features`, or beside the work directory, under the digest of everything that determines them:
the identity of the network and its variables, the images and, for crops, their options. The crops
do not depend on the seed of the run, so that all seeds, heads and methods share them.
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

DIRECTORY = "features"  # beside the work directory
KIND, FILE = "features of a frozen network", "features.npy"
CROP_SEED = 0  # of the random crops
# Options of the data that determine random crops, besides those of the evaluation.
CROPS = ("crop", "resize_first", "crop_scale", "crop_ratio", "flip")
TOLERANCE = 1e-3  # between the unit embeddings of a feature map and of its two cells


def with_features(
    experiment: Experiment, directory: Path, console: Console, stop: Stop
) -> Experiment:
    """The experiment with its features, kept beside the work directory `directory`, if it trains on
    features."""
    config = experiment.config
    if not config.train.feature_views:
        return experiment
    state = warm_start.initial_state(experiment, console)
    check(experiment, state)
    count = config.train.feature_views
    console.start_progress("features", count * len(experiment.splits["train"].labels))

    def shown(done: int) -> None:
        console.update_progress(done, "of the frozen backbone")
        stop.raise_if_stopped()

    kept = Path(config.train.features or directory.absolute().parent / DIRECTORY)
    found = cells(experiment, state, "train", kept, shown)
    return experiment._replace(features=found, augment=lambda images, key: images)


def cells(
    experiment: Experiment,
    state: Variables,
    name: str,
    directory: Path,
    on_progress: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """The features float32 [N, views, 1, 2, K] of a split, kept in a directory.

    Training images have `train.feature_views` views, others only the one of the evaluation. Runs,
    studies and benchmarks that name the same directory share its files. `state` is one of the
    experiment, which trains on features.
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
    """The `count` outputs [N, ...] for all images as in evaluation and as random crops.

    Those of view i are kept in the directory `<stem>-<i>`, from which a single process reads them.
    """
    whole = replace(embedder.data, crop="none", image_size=0, resize=0, training_size=0)
    uncropped = embedder._replace(data=whole)
    if device_mesh.is_main_process():  # before the long work, whose results it takes
        stem.parent.mkdir(parents=True, exist_ok=True)
    found = []
    for view in range(count):
        kept, before = stem.with_name(f"{stem.name}-{view}"), view * len(split.labels)
        if kept.exists() and jax.process_count() == 1:
            seal.read(kept, KIND, remedy=f"delete {kept}, and the features are computed again")
            found.append(np.load(kept / FILE, mmap_mode="r", allow_pickle=False))
            continue
        seen = crops(split, embedder.data, view) if view else split
        shown = partial(lambda before, done: on_progress(before + done), before)
        rows = (uncropped if view else embedder).embed_split(model, seen, shown).astype(dtype)
        if device_mesh.is_main_process():
            with seal.write(kept, KIND) as draft:
                np.save(draft / FILE, rows)
        found.append(rows)
    return found


def _features(config: Config) -> Embed:
    backbone = plugin_module("backbone", config.backbone.name).build(config.backbone)
    precision = backbone_products(config.train.precision)

    def compute(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array:
        variables, inputs = model_state["backbone"], backbone.preprocess(images)
        with jax.default_matmul_precision(precision):
            return pooled_cells(backbone.apply(variables, variables, inputs, train=False)[0])

    return compute


def crops(split: Split, data: Data, view: int) -> Split:
    """Random crops of a split, as large as the images of the evaluation, and always the same."""
    crop = transforms.training(replace(data, training_size=0))

    def read(index: int, rng: np.random.Generator | None) -> np.ndarray:
        fixed = np.random.default_rng((CROP_SEED, index, view))
        image = crop(split.read(index, fixed), fixed)
        return image[:, ::-1] if fixed.random() < data.flip else image

    return split._replace(read=read)


def check(experiment: Experiment, state: TrainState) -> None:
    """Raises ConfigError unless the method's embeddings of features equal those of their images."""
    config, embed = experiment.config, experiment.method.embed
    compute = _features(config)

    def both(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array:
        inputs = images, compute(params, model_state, images)
        return jnp.stack([embed(params, model_state, given) for given in inputs], axis=1)

    pixels = arrays.random(experiment.shape, 1)
    of_image, of_features = np.asarray(experiment.embedder(both).start(state, pixels))[0]
    if not np.allclose(of_image, of_features, atol=TOLERANCE):
        raise ConfigError(
            f"train.feature_views={config.train.feature_views}: method {config.method.name} needs "
            "whole feature maps, not pooled features; set it to 0, or choose another method"
        )


def key(experiment: Experiment, backbone: PyTree) -> str:
    """Digest of everything that determines features.

    `backbone` is the tree of all variables of the network, as a method on features holds it.
    """
    config = experiment.config
    network = identity.described(
        config.data,
        experiment.shape,
        config.backbone,
        None,
        identity.Versions(),
        precision=config.train.precision,
    )
    random = config.train.feature_views > 1
    facts = {
        "network": network,
        "variables": digest(backbone),
        "data": experiment.data_hash,
        "crops": {name: getattr(config.data, name) for name in CROPS if random},
    }
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]
