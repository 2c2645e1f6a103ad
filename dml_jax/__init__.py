"""Deep metric learning for images in JAX: exact, fast, one paper in one file."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dml_jax.model import Model


def load(workdir: str | Path, checkpoint: str = "reported") -> "Model":
    """The trained model of a run; `load(workdir).embed(paths)` gives float32 [N, D]. See `dml_jax.model.Model`."""
    from dml_jax.model import (
        Model,
    )  # JAX takes a second to import, and commands that only complain should not wait

    return Model(workdir, checkpoint)
