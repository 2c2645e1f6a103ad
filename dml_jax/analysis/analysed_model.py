"""The input of an analysis: a model, images and their embeddings."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from dml_jax.config import Config
from dml_jax.console import Console
from dml_jax.data.split import Split
from dml_jax.errors import UserError
from dml_jax.train.embedding import Embedder
from dml_jax.train.model import TrainedModel, load
from dml_jax.train.records import workdir


@dataclass(eq=False)
class AnalysedModel:
    """A model with the splits of its run, or with labelled images as the split "test"."""

    directory: Path  # of the run, or for the figures of labelled images
    model: TrainedModel
    splits: Mapping[str, Split]
    console: Console
    known: dict[str, np.ndarray] = field(default_factory=dict)  # embeddings [N, D] by split
    # Returns the model before the first step; raises UserError if its starting point (`init_from`,
    # pretrained weights) no longer exists.
    before_training: Callable[[], TrainedModel] | None = None
    classes: Sequence[str] = ()  # shown in maps; empty for all

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
        return self.splits[name]

    def embeddings(self, name: str) -> np.ndarray:
        """The model's embeddings of a split, float32 [N, D]; computed once."""
        if name not in self.known:
            self.console.print(f"embedding the images of {name}")
            self.known[name] = self.embedder.embed_split(self.model, self.split(name))
        return self.known[name]

    def models(self) -> Iterator[TrainedModel]:
        """Yields, by step, the untrained model if it can be restored, earlier checkpoints, and this
        model."""
        try:
            assert self.before_training is not None
            yield self.before_training()
        except UserError as error:
            self.console.warn(f"the model before the first step cannot be restored: {error}")
        for path in workdir.complete_checkpoints(self.directory / "checkpoints" / "latest"):
            if int(path.name) < self.step:
                # Its code was trusted when this model was loaded.
                earlier = load(self.directory, path.name, trust_code=True)
                variables = {"params": earlier.params, "model_state": earlier.model_state}
                yield self.model._replace(**variables, step=earlier.step)
        yield self.model

    def untrained(self) -> "AnalysedModel":
        """The run with its model before the first step."""
        assert self.before_training is not None
        return replace(self, model=self.before_training(), known={})
