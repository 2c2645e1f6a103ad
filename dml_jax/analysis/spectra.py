"""Geometry of an embedding space and of its parts: singular values, density, effective rank."""

from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dml_jax import drawing
from dml_jax.analysis.analysed_model import AnalysedModel
from dml_jax.analysis.findings import Finding
from dml_jax.evaluation import geometry
from dml_jax.evaluation.unit_rows import unit_rows
from dml_jax.methods.contract import Method

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

SCALARS = ("density", "effective_rank", "spectral_decay")  # functions of `evaluation.geometry`


class Space(NamedTuple):
    """Geometry of one embedding space."""

    singular_values: np.ndarray  # float [min(N, D)], largest first, divided by their sum
    scalars: dict[str, float]  # by name, see SCALARS


def measure(embeddings: np.ndarray, labels: np.ndarray) -> Space:
    """Computes the geometry of embeddings [N, D] of any norm with labels int [N]."""
    values = geometry.singular_values(embeddings)
    scalars = {"density": geometry.density(embeddings, labels)}
    scalars |= {name: getattr(geometry, name)(embeddings) for name in SCALARS[1:]}
    return Space(values / max(values.sum(), 1e-30), scalars)


def parts(method: Method, embeddings: np.ndarray) -> dict[str, np.ndarray]:
    """The embedding [N, D], and its parts (`Hooks.parts`) as rows of unit length."""
    by_name = {"embedding": embeddings}
    for name, first, stop in method.hooks.parts:
        by_name[name] = unit_rows(embeddings[:, first:stop])
    return by_name


def summary(method: Method, embeddings: np.ndarray, labels: np.ndarray) -> dict[str, Any]:
    """The scalars by name for `results.json`; those of each part are nested under its name.

    "singular_values" belong to the whole embedding, largest first, divided by their sum.
    """
    spaces = {part: measure(rows, labels) for part, rows in parts(method, embeddings).items()}
    whole = spaces.pop("embedding")
    spectrum = [float(f"{value:.6g}") for value in whole.singular_values]
    by_part = {part: space.scalars for part, space in spaces.items()}
    return whole.scalars | {"singular_values": spectrum} | by_part


def findings(run: AnalysedModel, split: str) -> list[Finding]:
    """Spectra and scalars of the embeddings of a split."""
    labels, rows_by_part = run.split(split).labels, parts(run.model.method, run.embeddings(split))
    spaces = {name: measure(rows, labels) for name, rows in rows_by_part.items()}
    scalars = "; ".join(
        f"{name}: " + ", ".join(f"{x.replace('_', ' ')} {space.scalars[x]:.4g}" for x in SCALARS)
        for name, space in spaces.items()
    )
    counts = [len(space.singular_values) for space in spaces.values()]
    return [
        Finding(
            "spectra",
            f"Singular values of the embeddings of the split '{split}', largest first, divided by "
            "their sum. A flat curve uses all dimensions equally; a drop to zero shows unused "
            "ones. Density: mean cosine distance within over that between classes. Effective rank: "
            f"number of directions in use. Spectral decay: lower is flatter. {scalars}.",
            partial(draw_spectra, spaces=spaces),
            {
                "space": np.repeat(list(spaces), counts).tolist(),
                "index": [i for count in counts for i in range(1, count + 1)],
                "share_of_singular_values": np.concatenate(
                    [space.singular_values for space in spaces.values()]
                ).tolist(),
            },
            size=(6.5, 3.6),
            same_axes=True,
        )
    ]


def draw_spectra(figure: "FigureBase", *, spaces: dict[str, Space]) -> None:
    """Draws one curve per space."""
    axes = drawing.style(figure.subplots())
    for i, (name, space) in enumerate(spaces.items()):
        points = list(enumerate(np.maximum(space.singular_values, 1e-9).tolist(), 1))
        drawing.line(axes, points, i, label=name, markevery=max(1, len(points) // 8))
    axes.set(xlabel="index of the singular value", yscale="log")
    axes.set(ylabel="share of the sum of singular values")
    drawing.legend(axes)
