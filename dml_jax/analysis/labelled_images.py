"""Any model on labelled images that it was not trained on, as input of the analyses of one split."""

from pathlib import Path

import numpy as np

from dml_jax.analysis.trained_run import TrainedRun
from dml_jax.config import Config
from dml_jax.console import Console
from dml_jax.data.split import Split
from dml_jax.errors import counted
from dml_jax.inference.model import Model


class LabelledImages(TrainedRun):
    """A model with the embeddings of labelled images, whatever the name of the split that is asked for."""

    def __init__(self, directory: Path, model: Model, split: Split, console: Console):
        self.directory, self.console = directory, console
        self._model, self._split, self._embeddings = model, split, {}

    @property
    def config(self) -> Config:
        """The configuration of the model; published weights have no method."""
        return self._model.config

    @property
    def step(self) -> int:
        """The step at which the model was saved; 0 for published weights."""
        return self._model.step

    def split(self, name: str) -> Split:
        """The images, or their gallery."""
        gallery = self._split.gallery
        return gallery if name == "gallery" and gallery is not None else self._split

    def embeddings(self, name: str) -> np.ndarray:
        """Float32 [N, D], computed once."""
        if name not in self._embeddings:
            self.console.print(f"embedding {counted(len(self.split(name).labels), 'image')}")
            self._embeddings[name] = self._model.embed_split(self.split(name))
        return self._embeddings[name]
