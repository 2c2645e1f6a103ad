"""A trained run as input of the analyses: data, model, models kept during training, embeddings of its splits."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dml_jax.config import Config
from dml_jax.console import Console
from dml_jax.data import holdout, transforms
from dml_jax.data.split import Split
from dml_jax.errors import UserError
from dml_jax.methods.contract import Batch
from dml_jax.train import on_devices
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.evaluation import embedding
from dml_jax.train.evaluation.embedding import Embedder
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import kept_models, workdir
from dml_jax.train.records.jsonl import JsonLines
from dml_jax.train.start import warm_start
from dml_jax.train.state import TrainState, inference_state


class TrainedRun:
    """A run with one of its models.

    Args:
      embeddings: known embeddings [N, D], by name of the split.
      batch: which training batch `training_batch` is, 0 for the first.
      node: the image of that batch whose attention is shown, in its order by class.
    """

    classes: Sequence[str] = ()  # that maps show; empty for all

    def __init__(
        self,
        directory: Path,
        experiment: Experiment,
        state: TrainState,
        console: Console,
        embeddings: Mapping[str, np.ndarray] = MappingProxyType({}),
        batch: int = 0,
        node: int = 0,
    ):
        self.batch, self.node = batch, node
        self.directory, self.experiment, self.state, self.console = directory, experiment, state, console
        self._embeddings = dict(embeddings)

    @property
    def config(self) -> Config:
        """The configuration of the run."""
        return self.experiment.config

    @property
    def step(self) -> int:
        """The step at which the model was saved."""
        return int(self.state.step)

    @cached_property
    def embedder(self) -> Embedder:
        """The compiled embedding."""
        return embedding.compile_embedder(self.experiment.method.embed, self.experiment.mesh, self.config)

    def split(self, name: str) -> Split:
        """The split of this name; "gallery" is that of the test split, "batch" the images of `training_batch`."""
        if name == "batch":
            return holdout.take(self.split("train"), self.batch_rows)
        if name == "gallery":
            gallery = self.experiment.splits["test"].gallery
            assert gallery is not None
            return gallery
        return self.experiment.splits[name]

    def embeddings(self, name: str) -> np.ndarray:
        """The model's embeddings of a split, float32 [N, D]; computed once."""
        if name not in self._embeddings:
            self.console.print(f"embedding the images of {name}")
            self._embeddings[name] = embedding.embed_split(self.embedder, self.state, self.split(name))
        return self._embeddings[name]

    def images(self, name: str, indices: np.ndarray) -> np.ndarray:
        """Images of a split, cropped as for evaluation: uint8 [n, H, W, 3]."""
        transform, split = transforms.evaluation(self.config.data), self.split(name)
        return np.stack([transform(split.read(int(i), None)) for i in indices])

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of `metrics.jsonl`."""
        return JsonLines(self.directory / "metrics.jsonl").read()

    @cached_property
    def kept_steps(self) -> list[int]:
        """Steps of the models kept during training, up to that of this model."""
        return [step for step in kept_models.steps(self._kept) if step <= self.step]

    @property
    def _kept(self) -> Path:
        return self.directory / "checkpoints" / "kept"

    def models(self) -> Iterator[TrainState]:
        """Yields the untrained model, those kept during training, and this model, by step.

        The untrained one is missing if its starting point (`init_from`, pretrained weights) no longer exists.
        """
        try:
            yield inference_state(warm_start.initial_state(self.experiment, Console(active=False)))
        except UserError as error:
            self.console.print(f"warning: the model before the first step cannot be restored: {error}")
        template, run = on_devices.template(self.experiment), workdir.identity(workdir.read_config(self.directory))
        for step in self.kept_steps:
            if step < self.step:
                state = kept_models.read(self._kept, step, template, run)
                yield meshes.place(self.experiment.mesh, state, self.experiment.method.hooks.class_axis)
        yield self.state

    def untrained(self) -> "TrainedRun":
        """The run with its model before the first step; its starting point (`init_from`, weights) must still exist."""
        state = warm_start.initial_state(self.experiment, Console(active=False))
        return TrainedRun(self.directory, self.experiment, state, self.console, batch=self.batch)

    def refined(self) -> "TrainedRun":
        """The run with the embeddings of its training batch after message passing, for methods that have it."""
        method, params, model_state = self.experiment.method, self.state.params, self.state.model_state

        @jax.jit
        def refine(images: jax.Array) -> jax.Array:
            assert method.hooks.teach is not None
            encoded, _ = method.encode(params, model_state, images, train=False)
            return method.hooks.teach(params, model_state, encoded).embeddings

        rows = np.asarray(refine(self.training_batch.images), np.float32)
        return TrainedRun(self.directory, self.experiment, self.state, self.console, {"batch": rows}, self.batch)

    @cached_property
    def batch_rows(self) -> np.ndarray:
        """The training images of one batch, by class: int [B]."""
        rows = np.asarray(self.experiment.sampler.batch(self.batch))
        return rows[np.argsort(self.split("train").labels[rows], kind="stable")]

    @cached_property
    def training_batch(self) -> Batch:
        """The images of one training batch, cropped as for evaluation: uint8 [1, B, H, W, 3], with labels, by class."""
        index, labels = self.batch_rows, self.split("batch").labels
        images = self.images("train", index)[None]
        return Batch(jnp.asarray(images), jnp.asarray(labels, jnp.int32), jnp.asarray(index, jnp.int32))
