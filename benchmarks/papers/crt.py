"""Figure 2 of CRT (Kan et al., NeurIPS 2022), of a run: where in an image its prototypes respond.

    python -m benchmarks.papers.crt runs/cars_crt

The response at position j to prototype k is softplus(<x_j, c_k>), the weight of the residual in
equation 1.
"""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from benchmarks.papers import runs
from dml_jax.analysis.analysed_model import AnalysedModel
from dml_jax.analysis.findings import Finding
from dml_jax.config import plugin_module
from dml_jax.methods.crt.method import Config, own_prototypes

if TYPE_CHECKING:
    from matplotlib.figure import FigureBase

IMAGES, PROTOTYPES = 6, 7  # rows and columns of the figure


def correlations(prototypes: Array, maps: Array) -> Array:
    """Weights of the residuals, [N, h, w, K], of maps [N, h, w, L] to prototypes [K, L]."""
    maps, highest = maps.astype(jnp.float32), jax.lax.Precision.HIGHEST
    return jax.nn.softplus(jnp.einsum("nhwl,kl->nhwk", maps, prototypes, precision=highest))


def most_selective(weights: np.ndarray, count: int) -> np.ndarray:
    """The prototypes whose weights [N, h, w, K] vary most over an image: int [count], sorted."""
    deviation = weights.std(axis=(1, 2)).mean(axis=0)
    return np.sort(np.argsort(-deviation, kind="stable")[:count])


def heat_maps(run: AnalysedModel, split: str = "test") -> list[Finding]:
    """Heat maps of some prototypes over images of different classes."""
    data = run.split(split)
    first = np.unique(data.labels, return_index=True)[1]  # an image of each class
    chosen = first[np.unique(np.linspace(0, len(first) - 1, IMAGES).astype(int))]
    images = runs.images(run, split, chosen)
    backbone = plugin_module("backbone", run.config.backbone.name).build(run.config.backbone)
    params, stats = run.model.params, run.model.model_state["backbone"]
    maps, _ = jax.jit(partial(backbone.apply, train=False))(
        params["backbone"], stats, backbone.preprocess(images)
    )
    shared = own_prototypes(params)[0]
    prototypes = params[run.config.method.tested_branch].get("prototypes", shared)
    weights = np.asarray(correlations(prototypes, maps), np.float64)
    shown = most_selective(weights, PROTOTYPES)
    columns = zip(
        *(
            (data.ids[chosen[n]], int(k), i, j, float(weights[n, i, j, k]))
            for n in range(len(chosen))
            for k in shown
            for i, j in np.ndindex(*weights.shape[1:3])
        ),
        strict=True,
    )
    return [
        Finding(
            "heat_maps",
            "Where prototypes respond: weight of each position in the coded residual, for the "
            f"{len(shown)} of {weights.shape[-1]} prototypes that vary most over an image, on "
            f"images of the split '{split}'. Bright: largest weight of the prototype on these "
            "images; dark: smallest.",
            partial(draw_maps, images=images, weights=weights[..., shown], prototypes=shown),
            dict(zip(("image", "prototype", "row", "column", "weight"), columns, strict=True)),
            size=(len(shown) + 1.9, len(images) + 0.5),
        )
    ]


def draw_maps(
    figure: "FigureBase", *, images: np.ndarray, weights: np.ndarray, prototypes: np.ndarray
) -> None:
    """Draws images [N, H, W, 3] by row, prototypes by column, from weights [N, h, w, K]."""
    count, columns = len(images), weights.shape[-1] + 1
    cells = figure.subplots(count, columns, squeeze=False)
    low, high = weights.min(axis=(0, 1, 2)), weights.max(axis=(0, 1, 2))
    scaled = (weights - low) / np.maximum(high - low, 1e-12)
    extent = (-0.5, images.shape[2] - 0.5, images.shape[1] - 0.5, -0.5)
    for n in range(count):
        for k, axes in enumerate(cells[n]):
            axes.imshow(images[n])
            axes.set(xticks=[], yticks=[])
            if k:
                shown = axes.imshow(
                    scaled[n, :, :, k - 1],
                    cmap="cividis",
                    vmin=0,
                    vmax=1,
                    alpha=0.75,
                    extent=extent,
                    interpolation="bilinear",
                )
            if n == 0:
                axes.set_title(f"prototype {prototypes[k - 1]}" if k else "image", fontsize=7)
    figure.colorbar(shown, ax=cells, label="relative weight", shrink=0.6)


def main(arguments: Sequence[str] | None = None) -> None:
    flags = runs.parser(__doc__)
    options = flags.parse_args(arguments)
    _, run = runs.load(options.run, options)
    method = run.config.method
    if not isinstance(method, Config) or method.transform == "average":
        flags.error(f"{options.run}: was trained without prototypes")
    runs.write(run, {"heat_maps": ("Prototypes over the image", {"": heat_maps(run)})})


if __name__ == "__main__":
    main()
