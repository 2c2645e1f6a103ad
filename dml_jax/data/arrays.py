"""What a data set contains: images, or other arrays of one shape and type.

Images are uint8 [H, W, 3], and their shape is (H, W) in pixels. The shape of other arrays begins
with the name of their type: ("int32", 24) for 24 tokens.
"""

from typing import Any

import numpy as np

from dml_jax.errors import DataError

Shape = tuple[int | str, ...]
INTEGERS = ("int8", "int16", "int32", "uint8", "uint16", "uint32")
TYPES = ("bool", *INTEGERS, "float16", "float32")  # which JAX does not convert


def is_image(shape: Shape) -> bool:
    """Whether this is the shape of images."""
    return not isinstance(next(iter(shape), 0), str)


def check_shape(shape: Shape) -> Shape:
    """Returns the shape; raises ValueError unless it is one of images or other arrays."""
    lengths = shape if is_image(shape) else shape[1:]
    if not all(isinstance(length, int) for length in lengths):
        raise ValueError("must be whole numbers, which the name of a type may precede")
    if is_image(shape):
        if len(shape) != 2:
            raise ValueError("must be the height and width of images, or begin with a type")
    elif shape[0] not in TYPES:
        raise ValueError(f"must begin with one of {', '.join(TYPES)}")
    return shape


def shape_of(row: np.ndarray) -> Shape:
    """The shape of an image or other array; DataError if JAX would convert its type."""
    if row.dtype == np.uint8 and row.ndim == 3 and row.shape[2] == 3:
        return row.shape[:2]
    if row.dtype.name not in TYPES or not row.size:
        raise DataError(
            f"read returns {row.dtype} {list(row.shape)}; give numbers of at most 32 bits, such as "
            "int32 or float32"
        )
    return (row.dtype.name, *row.shape)


def describe(shape: Shape) -> str:
    """A shape in words."""
    if is_image(shape):
        return f"{shape[1]}x{shape[0]} pixels"
    return f"{shape[0]} {list(shape[1:])}"


def blank(shape: Shape, *before: int) -> np.ndarray:
    """Zeros with the type of a shape, [*before, *shape]."""
    sides: Any = shape
    if is_image(shape):
        return np.zeros((*before, *sides, 3), np.uint8)
    return np.zeros((*before, *sides[1:]), np.dtype(str(shape[0])))


def random(shape: Shape, count: int) -> np.ndarray:
    """Random images or other arrays, [count, *shape]: floats in [0, 1), integers 0 and 1.

    0 and 1 are valid in every range of integers, such as a vocabulary.
    """
    zeros, rng = blank(shape, count), np.random.default_rng(0)
    if is_image(shape):
        return rng.integers(0, 256, zeros.shape, np.uint8)
    if zeros.dtype.kind == "f":
        return rng.random(zeros.shape).astype(zeros.dtype)
    return rng.integers(0, 2, zeros.shape).astype(zeros.dtype)
