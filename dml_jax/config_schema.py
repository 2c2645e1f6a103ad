"""Validation of a configuration: a nested mapping becomes a frozen dataclass, or one sentence says why it cannot.

Every section of the configuration is a frozen dataclass whose fields are the only keys. Rules are stated with `require`
in its `__post_init__`.
"""

import dataclasses
import difflib
import types
import typing
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from dml_jax.errors import ConfigError

T = TypeVar("T")


def require(condition: bool, key: str, value: Any, rule: str) -> None:
    """Raises ConfigError with the key, its value and the broken rule, unless `condition` holds."""
    if not condition:
        raise ConfigError(f"{key}={value!r}: {rule}")


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of an error message: the most similar known names, or all of them if none is similar."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=2, cutoff=0.6)
    return f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(names)}"


def validate(section: type[T], values: Mapping[str, Any], path: str = "") -> T:
    """Builds a section from values after checking keys, types and rules.

    Args:
      section: a frozen dataclass; fields may be bool, int, float, str, Literal, tuple[X, ...], a fixed tuple, a
        dataclass, or dict[str, dataclass].
      values: the mapping; missing fields take their defaults.
      path: dotted name of the section, for messages.

    Raises:
      ConfigError: an unknown or missing key, a wrong type or a broken rule.
    """
    hints = typing.get_type_hints(section)
    fields = {field.name: field for field in dataclasses.fields(section)}  # type: ignore[arg-type]
    prefix = f"{path}." if path else ""
    for key in values:
        if key not in fields:
            raise ConfigError(f"{prefix}{key}: there is no such key; {suggest(key, fields)}")
    for name, field in fields.items():
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if name not in values and not optional:
            raise ConfigError(f"{prefix}{name}: missing, and it has no default")
    converted = {key: _convert(hints[key], value, f"{prefix}{key}") for key, value in values.items()}
    try:
        return section(**converted)
    except ConfigError as error:  # a section that stands in several places does not know its own
        raise ConfigError(str(error) if str(error).startswith(prefix) else f"{prefix}{error}") from error


def _convert(hint: Any, value: Any, path: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if origin is typing.Literal:
        if value not in arguments:
            raise ConfigError(f"{path}={value!r}: {suggest(str(value), map(str, arguments))}")
        return value
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _convert(next(a for a in arguments if a is not type(None)), value, path)
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise ConfigError(f"{path}={value!r}: must be a list of values")
        items = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
        if len(items) != len(value):
            raise ConfigError(f"{path}={value!r}: must hold {len(items)} values")
        return tuple(
            _convert(item, entry, f"{path}[{i}]") for i, (item, entry) in enumerate(zip(items, value, strict=True))
        )
    if origin is dict:
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}={value!r}: must be a section of named entries")
        return {key: _convert(arguments[1], entry, f"{path}.{key}") for key, entry in value.items()}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if not isinstance(value, Mapping):
            raise ConfigError(f"{path}={value!r}: must be a section")
        return validate(hint, value, path)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, hint) or (hint is int and isinstance(value, bool)):
        raise ConfigError(f"{path}={value!r}: must be {hint.__name__}, not {type(value).__name__}")
    return value
