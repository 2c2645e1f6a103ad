"""The input of an analysis: a model, the images of splits, and tables of their embeddings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import jax.numpy as jnp
import numpy as np

from dml_jax.config import Config
from dml_jax.console import Console
from dml_jax.data import transforms
from dml_jax.data.samplers import Sampler
from dml_jax.data.split import Split, take
from dml_jax.errors import UserError
from dml_jax.evaluation.refinement_batches import Groups
from dml_jax.methods.contract import Batch
from dml_jax.train.embedding import Embedder
from dml_jax.train.model import TrainedModel, load
from dml_jax.train.records import workdir


@dataclass(eq=False)
class AnalysedModel:
    """A model on the splits of its run, or on labelled images, which are the split "test"."""

    directory: Path  # folder of the run, or for the figures of labelled images
    model: TrainedModel
    splits: Mapping[str, Split]
    console: Console
    known: dict[str, np.ndarray] = field(default_factory=dict)  # embeddings [N, D] by split
    sampler: Sampler | None = None  # None for labelled images
    # Returns the model before the first step; raises UserError if its starting point (`init_from`,
    # pretrained weights) no longer exists.
    before_training: Callable[[], TrainedModel] | None = None
    batch: int = 0  # number of the training batch that is analysed
    node: int = 0  # position, in this batch by class, of the image whose attention is shown
    classes: Sequence[str] = ()  # that maps show; empty for all

    @property
    def config(self) -> Config:
        return self.model.config

    @property
    def step(self) -> int:
        return self.model.step

    @cached_property
    def embedder(self) -> Embedder:
        return self.model.embedder()

    def split(self, name: str) -> Split:
        """The split of this name; "batch" stands for the images of `training_batch`."""
        return take(self.split("train"), self.batch_rows) if name == "batch" else self.splits[name]

    def embeddings(self, name: str) -> np.ndarray:
        """The model's embeddings of a split, float32 [N, D]; computed once."""
        if name not in self.known:
            self.console.print(f"embedding the images of {name}")
            self.known[name] = self.embedder.embed_split(self.model, self.split(name))
        return self.known[name]

    def images(self, name: str, indices: np.ndarray) -> np.ndarray:
        """Images of a split, cropped as for evaluation: uint8 [n, H, W, 3]."""
        transform, split = transforms.evaluation(self.config.data), self.split(name)
        return np.stack([transform(split.read(int(i), None)) for i in indices])

    def models(self) -> Iterator[TrainedModel]:
        """Yields the untrained model, if it can be restored, those of earlier checkpoints, and this
        one, by step."""
        try:
            assert self.before_training is not None
            yield self.before_training()
        except UserError as error:
            self.console.warn(f"the model before the first step cannot be restored: {error}")
        for path in workdir.complete_checkpoints(self.directory / "checkpoints" / "latest"):
            if int(path.name) < self.step:
                # Its code, if any, has been trusted when this model was read.
                found = load(self.directory, path.name, trust_code=True)
                variables = {"params": found.params, "model_state": found.model_state}
                yield self.model._replace(**variables, step=found.step)
        yield self.model

    def untrained(self) -> "AnalysedModel":
        """The run with its model before the first step."""
        assert self.before_training is not None
        return replace(self, model=self.before_training(), known={})

    def refined(self) -> "AnalysedModel":
        """The run with refined embeddings of its training batch (see `Hooks.refine`)."""
        refine, rows = self.model.method.hooks.refine, jnp.asarray(self.embeddings("batch"))
        assert refine is not None
        batch = Groups(np.arange(len(rows))[None], len(rows))
        found = refine(self.model.params, self.model.model_state, rows, groups=batch)
        return replace(self, known={"batch": np.asarray(found, np.float32)})

    @cached_property
    def batch_rows(self) -> np.ndarray:
        """The training images of one batch, by class: int [B]."""
        assert self.sampler is not None
        rows = np.asarray(self.sampler.batch(self.batch))
        return rows[np.argsort(self.split("train").labels[rows], kind="stable")]

    @cached_property
    def training_batch(self) -> Batch:
        """One training batch by class, images uint8 [1, B, H, W, 3] cropped as for evaluation."""
        images = jnp.asarray(self.images("train", self.batch_rows)[None])
        labels = jnp.asarray(self.split("batch").labels, jnp.int32)
        return Batch(images, labels, jnp.asarray(self.batch_rows, jnp.int32))
