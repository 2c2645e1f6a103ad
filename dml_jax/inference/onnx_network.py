"""A network that onnxruntime computes on the CPU (extra "onnx").

The embedding function is converted whenever the model is loaded, and compared with the original: rows agree within
`export.onnx.TOLERANCE` of the largest value.
"""

import importlib.util
from collections.abc import Sequence
from functools import partial

import numpy as np

from dml_jax.errors import ConfigError
from dml_jax.export import onnx
from dml_jax.inference.batches import Network, usable_cores
from dml_jax.methods.contract import Embed, PyTree


def check_installed() -> None:
    """Raises ConfigError unless the extra is installed."""
    for module in ("jax2onnx", "onnxruntime"):
        if importlib.util.find_spec(module) is None:
            raise ConfigError(
                f'--runtime=onnx: {module} is not installed: pip install jax2onnx onnxruntime (the extra "onnx")'
            )


class OnnxNetwork(Network):
    """See `Network`; batches are not padded. Raises DataError if the function cannot be converted."""

    def __init__(self, embed: Embed, params: PyTree, model_state: PyTree, shape: tuple[int, int], batch: int):
        self._shape, self._batch = shape, batch
        function = partial(embed, params, model_state)
        _, self._run, _ = onnx.converted(function, shape, "--runtime=onnx", "use --runtime=jax", usable_cores())

    def padded_size(self, count: int) -> int:
        """`count`: one program is for any number of images."""
        return count

    def _start(self, pixels: np.ndarray | Sequence[np.ndarray]) -> np.ndarray:
        return self._run(np.stack(list(pixels)))
