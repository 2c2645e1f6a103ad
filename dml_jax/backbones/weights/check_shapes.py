"""Comparing the names and shapes of tensors with those a network needs."""

from collections.abc import Mapping
from typing import Any

from flax import traverse_util

from dml_jax.errors import WeightsError

Shape = tuple[int, ...]


def leaf_shapes(tree: Any) -> dict[str, Shape]:
    """Shapes of the arrays in a nested dict, by path: keys joined by slashes."""
    return {path: tuple(leaf.shape) for path, leaf in traverse_util.flatten_dict(tree, sep="/").items()}


def check_shapes(source: str, expected: Mapping[str, Shape], found: Mapping[str, Shape]) -> None:
    """Raises WeightsError, which names `source` and every tensor that is missing, unexpected or of the wrong shape."""
    missing = [name for name in expected if name not in found]
    unexpected = [name for name in found if name not in expected]
    wrong = [
        f"{name} {list(found[name])} instead of {list(shape)}"
        for name, shape in expected.items()
        if name in found and found[name] != shape
    ]
    groups = {"missing": missing, "unexpected": unexpected, "wrong shape": wrong}
    problems = [f"{what}: {', '.join(names)}" for what, names in groups.items() if names]
    if problems:
        raise WeightsError(f"{source}: the tensors do not match the network; {'; '.join(problems)}")
