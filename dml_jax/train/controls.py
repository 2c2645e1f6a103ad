"""Controls: baselines that a trained network has to beat.

They are raw pixels, a colour histogram, the model before the first step, and the published weights
that it started from.
"""

import jax
import jax.numpy as jnp
import numpy as np
from PIL import Image

from dml_jax.config import Config
from dml_jax.console import Console
from dml_jax.data import look, transforms
from dml_jax.data.arrays import is_image
from dml_jax.data.read_ahead import ordered_map
from dml_jax.data.split import Split, with_gallery
from dml_jax.errors import UserError
from dml_jax.methods.contract import Method
from dml_jax.train import warm_start
from dml_jax.train.distributed import device_mesh
from dml_jax.train.experiment import Experiment
from dml_jax.train.model import published_method
from dml_jax.train.step import TrainState

SIDE = 32  # of images for raw pixels, in pixels
BINS = (12, 4, 4)  # hue, saturation and value
PUBLISHED = "published weights without further training"


def embeddings(experiment: Experiment, console: Console) -> dict[str, dict[str, np.ndarray]]:
    """Embeddings float32 [N, D] by control and by split: "test" and perhaps "gallery"."""
    config, by_control = experiment.config, {}
    if config.evaluation.controls:
        console.print("evaluating the controls")
        splits = with_gallery(experiment.splits)
        if is_image(experiment.shape):
            simple = {name: without_learning(config, part) for name, part in splits.items()}
            for control in simple["test"]:
                by_control[control] = {name: rows[control] for name, rows in simple.items()}
        if experiment.method.hooks.published is None:  # otherwise, it starts with these weights
            from_weights = experiment.start or config.backbone.pretrained != "none"
            state = warm_start.initial_state(experiment, console)
            rows = _embeddings(experiment, experiment.method, state)
            by_control["before training" if from_weights else "untrained"] = rows
    if config.backbone.pretrained != "none":
        console.print(f"evaluating the {PUBLISHED}")
        method, batch = published_method(config.backbone), experiment.example_batch()
        try:
            variables = method.init(jax.random.key(0), batch)
            params, model_state = device_mesh.place(experiment.mesh, variables)
            state = TrainState(jnp.zeros((), jnp.int32), params, model_state, ())
            by_control[PUBLISHED] = rows = _embeddings(experiment, method, state)
            console.print(look.summarise(with_gallery(experiment.splits), rows))
        except UserError as problem:  # e.g. the files have moved; other results are unaffected
            console.warn(str(problem))
    return by_control


def _embeddings(experiment: Experiment, method: Method, state: TrainState) -> dict[str, np.ndarray]:
    embedder, splits = experiment.embedder(method.embed), with_gallery(experiment.splits)
    return {name: embedder.embed_split(state, part) for name, part in splits.items()}


def without_learning(config: Config, split: Split) -> dict[str, np.ndarray]:
    """Features float32 [N, D] of a split by control: "raw pixels" and "colour histogram"."""
    transform = transforms.evaluation(config.data)

    def measures(index: int) -> tuple[np.ndarray, np.ndarray]:
        image = transform(split.read(index, None))
        return pixels(image), histogram(image)

    raw, colours = zip(*ordered_map(measures, range(len(split.labels))), strict=True)
    return {"raw pixels": np.stack(raw), "colour histogram": np.stack(colours)}


def pixels(image: np.ndarray) -> np.ndarray:
    """The pixels of an image uint8 [H, W, 3], scaled down to at most SIDE x SIDE: float32 [D]."""
    small = Image.fromarray(image)
    small = small.resize((min(small.width, SIDE), min(small.height, SIDE)), Image.Resampling.BOX)
    return np.asarray(small, np.float32).ravel()


def histogram(image: np.ndarray) -> np.ndarray:
    """Square roots of the shares of pixels in each cell of hue, saturation and value.

    uint8 [H, W, 3] -> float32 [192].
    """
    hsv = np.asarray(Image.fromarray(image).convert("HSV")).reshape(-1, 3).astype(np.int64)
    hue, saturation, value = (hsv * BINS // 256).T
    cells = (hue * BINS[1] + saturation) * BINS[2] + value
    counts = np.bincount(cells, minlength=int(np.prod(BINS)))
    return np.sqrt(counts / len(hsv)).astype(np.float32)
