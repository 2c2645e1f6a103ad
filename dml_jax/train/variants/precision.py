"""The training step in bfloat16 (`train.precision`).

The backbone computes activations in bfloat16 (`backbone.dtype`), and the products of heads and classifiers round their
operands. Parameters, batch statistics, similarities of embeddings, softmaxes, losses, gradients of parameters, the
optimizer and metrics stay in float32, and so do heads in evaluations.
"""

from typing import Any

from dml_jax import numerics
from dml_jax.methods.contract import Method


def in_bfloat16(method: Method) -> Method:
    """The method with the products of its heads in bfloat16 in training; its backbone is as it was built."""

    def rounded(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            with numerics.in_bfloat16():
                return function(*arguments, **options)

        return call

    return method._replace(encode=rounded(method.encode), loss=rounded(method.loss))
