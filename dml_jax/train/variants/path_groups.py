"""Parameter groups by path: keys of `train.groups` such as "backbone/layer1_*" beside the groups of the method."""

from collections.abc import Collection
from fnmatch import fnmatchcase

import jax

from dml_jax.errors import ConfigError, suggest
from dml_jax.methods.contract import Method, PyTree


def is_path(name: str) -> bool:
    """Whether a key of `train.groups` is a pattern of paths rather than the name of a group."""
    return "/" in name


def by_path(method: Method, names: Collection[str]) -> Method:
    """The method with a group of its own for each pattern among the keys of `train.groups`.

    A pattern, such as "backbone/blocks_1*/attn", is for all parameters and statistics whose path it fits, and all
    below; * stands for any characters. Of several, the longest counts; the method groups what none fits.
    """
    patterns = sorted(filter(is_path, names), key=lambda name: (-len(name), name))
    if not patterns:
        return method

    def group(path: tuple[str, ...]) -> str:
        joined = "/".join(path)
        fitting = (name for name in patterns if fnmatchcase(joined, name) or fnmatchcase(joined, f"{name}/*"))
        return next(fitting, None) or method.group(path)

    return method._replace(groups=(*method.groups, *patterns), group=group)


def check_used(names: Collection[str], method: Method, params: PyTree) -> None:
    """Raises ConfigError, with the nearest paths, if a pattern is for no parameter; of `params`, only keys matter."""
    paths = [tuple(part.key for part in path) for path, _ in jax.tree_util.tree_leaves_with_path(params)]
    used = {method.group(path) for path in paths}
    for name in filter(is_path, names):
        if name not in used:
            depth = name.count("/") + 1
            modules = dict.fromkeys("/".join(path[:depth]) for path in paths)
            raise ConfigError(
                f"train.groups.{name}: fits no parameter that longer patterns leave; {suggest(name, list(modules))}"
            )
