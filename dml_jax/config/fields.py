"""Sections of a configuration: frozen dataclasses whose fields declare rules.

    @section
    class Config:
        '''Options of my method.

        Attributes:
          tau: Scale of the distances.
        '''

        tau: Positive = 32.0

Rules across fields are checked in `__post_init__` with `require`.
"""

import dataclasses
import enum
import functools
import inspect
import json
import re
import typing
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, dataclass_transform, get_args

import pydantic
import pydantic.dataclasses
import pydantic_core
from annotated_types import Ge, Gt, Le, Lt, MinLen

from dml_jax.errors import ConfigError, suggest

T = TypeVar("T")
Values: TypeAlias = Mapping[str, Any]  # nested

LIMIT = 2**31  # sizes and steps are 32-bit integers in JAX
PositiveInt = Annotated[int, Gt(0), Lt(LIMIT)]
NonNegativeInt = Annotated[int, Ge(0), Lt(LIMIT)]
AtLeastTwo = Annotated[int, Ge(2), Lt(LIMIT)]
LARGEST = 3.4028234663852886e38  # of float32; JAX turns larger numbers into infinity
Positive = Annotated[float, Gt(0), Le(LARGEST)]
NonNegative = Annotated[float, Ge(0), Le(LARGEST)]
Probability = Annotated[float, Ge(0), Le(1)]
Fraction = Annotated[float, Ge(0), Lt(1)]  # 1 excluded
NonEmpty = MinLen(1)
Dtype = Literal["float32", "bfloat16"]
# Each: (whether it holds, text, names of options in the section …); see `inert` and `doubtful`.
Rules: TypeAlias = tuple[tuple[Any, ...], ...]
IMPORT_PATH = "an import path"


@dataclasses.dataclass(frozen=True)
class Named:
    """The rule for a name in this package or the import path of a function."""

    names: tuple[str, ...] | None  # None if the method defines them

    def __call__(self, value: str) -> str:
        if self.names is not None and value not in self.names and "." not in value:
            choices = ", ".join(filter(None, (*self.names, IMPORT_PATH)))
            raise pydantic_core.PydanticCustomError(
                "name", "Input should be one of {names}", {"names": choices}
            )
        return value


class Effect(enum.Enum):
    """What an option affects; annotates the option or its section.

        k: Annotated[PositiveInt, Effect.NONE] = 10  # neighbours in the results

    An option without an `Effect` changes the trained model: a run resumes only with the same value.
    """

    NONE = "no model"  # only logs, speed or the final results
    SELECTION = "which model is selected"  # unless train.select is "last"
    # Also changes the selection; `evaluation.test_variants` may set such options.
    EMBEDDING = "the embedding of a trained model"


class Mark(enum.Enum):
    """Other marks of an option's annotation."""

    SAME_EXPERIMENT = "published numbers also hold for other values"
    PATH = "a path"
    CODE = "names functions or their import paths, which the option's owner checks"
    BY_PATH = "the function has no options, because commands call it with only its path"
    TRAINING = "does not change the embeddings of a network with fixed weights"


def require(condition: bool, key: str, value: Any, rule: str) -> None:
    """Raises ValueError unless `condition` holds; the key is relative to the section."""
    if not condition:
        raise ValueError(f"{key}={value!r}: {rule}")


def with_precision(backbone: Any, dtype: str | None) -> Any:
    """A network with this `dtype` of its activations, if it has the option."""
    if dtype and hasattr(backbone, "dtype"):
        return dataclasses.replace(backbone, dtype=dtype)
    return backbone


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def section(cls: type[T]) -> type[T]:
    """Makes a class a frozen dataclass that raises ConfigError for invalid values."""
    config = pydantic.ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    dataclass_type: Any = pydantic.dataclasses.dataclass(cls, frozen=True, config=config)
    validating_init = dataclass_type.__init__

    @functools.wraps(validating_init)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            validating_init(self, *args, **kwargs)
        except pydantic.ValidationError as error:
            path = getattr(dataclass_type, "KEY", "")
            raise ConfigError(_message(error, path, list(keys(dataclass_type, path)))) from None

    dataclass_type.__init__ = init
    return dataclass_type


def validate(kind: type[T], values: Values, path: str = "") -> T:
    """Builds a section from nested values; missing keys take defaults, lists become tuples.

    ConfigError for an unknown or missing key, a wrong type or a broken rule; `path` is the section.
    """
    try:
        # For JSON, which has no tuples or classes, strict validation accepts lists and mappings.
        return pydantic.TypeAdapter(kind).validate_json(json.dumps(values))
    except pydantic.ValidationError as error:
        valid_keys = [*flatten(values, f"{path}." if path else ""), *keys(kind, path)]
        raise ConfigError(_message(error, path, valid_keys)) from None


def _message(problems: pydantic.ValidationError, path: str, valid_keys: list[str]) -> str:
    """One sentence for the first of pydantic's errors: key, value, rule and remedy."""
    unknown = ("unexpected_keyword_argument", "extra_forbidden")
    error = min(problems.errors(include_url=False), key=lambda e: e["type"] not in unknown)
    path_parts = [part for part in error["loc"] if not str(part).startswith(("tuple[", "dict["))]
    parent_key = path  # the key without its last index
    key = path
    for place in path_parts:
        parent_key = key
        key += f"[{place}]" if isinstance(place, int) else f".{place}" if key else str(place)
    kind, value = error["type"], error["input"]
    missing = kind in ("missing", "missing_argument")
    if kind in unknown:
        return f"{key}: unknown key; {suggest(key, [k for k in valid_keys if k != key])}"
    if kind == "too_long" or (missing and isinstance(path_parts[-1], int)):
        return f"{parent_key if missing else key}={value!r}: wrong number of values"
    if missing:
        return f"{key}: missing; it has no default"
    if kind == "value_error":
        problem = str(error["ctx"]["error"])
        return f"{key}.{problem}" if key else problem
    return f"{key}={value!r}: {error['msg'].replace('Input should', 'must')}"


def keys(kind: type, path: str = "") -> Iterator[str]:
    """The dotted keys of a section, including nested sections."""
    for field in dataclasses.fields(kind):
        key = f"{path}.{field.name}" if path else field.name
        hint = _bare(_hints(kind)[field.name])
        if isinstance(hint, type) and dataclasses.is_dataclass(hint):
            yield from keys(hint, key)
        else:
            yield key


def flatten(values: Values, prefix: str = "") -> dict[str, Any]:
    """Nested values -> dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat


def meanings(kind: type) -> dict[str, str]:
    """The meaning of each option of a section, from its docstring and those of its bases."""
    texts = (parse_entries(inspect.getdoc(owner) or "") for owner in reversed(kind.__mro__))
    return {name: meaning for text in texts for name, meaning in text.items()}


def parse_entries(text: str) -> dict[str, str]:
    """The entries of `Attributes` or `Args` in a docstring."""
    _, *parts = re.split(r"^(?:Attributes|Args):$", text, flags=re.M)
    entries = re.findall(r"^  (\w+): (.*(?:\n    .*)*)", "".join(parts), flags=re.M)
    return {name: " ".join(meaning.split()) for name, meaning in entries}


@cache
def declared(kind: Any, key: str) -> tuple[Any, ...]:
    """The annotations of a dotted key in a section's type, outer sections first.

    Unknown keys have none.
    """
    marks: list[Any] = []
    for part in key.split("."):
        if typing.get_origin(kind) is dict:
            kind = get_args(kind)[1]
            continue
        alternatives = (kind, *get_args(kind))  # "Section | None"
        kind = next((arg for arg in alternatives if dataclasses.is_dataclass(arg)), None)
        if kind is None or part not in _hints(kind):
            break
        marks += _annotations(_hints(kind)[part])
        kind = _bare(_hints(kind)[part])
    return tuple(marks)


def effect(kind: Any, key: str) -> Effect | None:
    """The `Effect` of an option; None if it changes the trained model."""
    return next((mark for mark in reversed(declared(kind, key)) if isinstance(mark, Effect)), None)


def names_code(mark: Any) -> bool:
    """Whether an annotation marks an option that names functions."""
    return mark is Mark.CODE or isinstance(getattr(mark, "func", None), Named)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _bare(hint: Any) -> Any:
    """A type without `Annotated`."""
    return hint.__origin__ if hasattr(hint, "__metadata__") else hint


def _annotations(hint: Any) -> list[Any]:
    """The annotations of a type and of the values in a tuple."""
    inner = [mark for part in get_args(hint) if part is not hint for mark in _annotations(part)]
    return [*inner, *getattr(hint, "__metadata__", ())]


def inert(config: Any) -> dict[str, str]:
    """A sentence for each option, by key, that has no effect but differs from its default.

    The `inert` method of a section takes the configuration and returns `Rules`; their text says
    what the options need: "has no effect without …".
    """
    return {
        f"{path}{name}": f"{path}{name}={value!r}: has no effect without {needed}; set that, or "
        "remove this"
        for path, part, needed, name in _broken(config, "inert")
        if (value := getattr(part, name)) != part.__dataclass_fields__[name].default
    }


def doubtful(config: Any) -> dict[str, str]:
    """A sentence for each value, by key, that is valid but probably a mistake.

    The `doubtful` method of a section takes the configuration and returns `Rules`; their text
    names the problem and the remedy.
    """
    return {
        f"{path}{name}": f"{path}{name}={getattr(part, name)!r}: {problem}"
        for path, part, problem, name in _broken(config, "doubtful")
    }


def _broken(config: Any, method: str) -> Iterator[tuple[str, Any, str, str]]:
    """(path, section, text, option) of the rules that do not hold."""
    for path, part in _sections(config):
        rules = getattr(part, method, None)
        for holds, text, *names in rules(config) if callable(rules) else ():
            for name in () if holds else names:
                yield path, part, text, name


def _sections(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The sections of a configuration with their paths, which end in a dot."""
    entries = value if isinstance(value, dict) else {}
    if dataclasses.is_dataclass(value):
        yield path, value
        entries = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    for name, entry in entries.items():
        yield from _sections(entry, f"{path}{name}.")


def at_defaults(value: Any, keys: Collection[str], path: str = "") -> Any:
    """A configuration, or its part at `path`, with the options at `keys` at their defaults."""
    if isinstance(value, dict):
        return {name: at_defaults(entry, keys, f"{path}{name}.") for name, entry in value.items()}
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(value) if dataclasses.is_dataclass(value) else ():
        old, key = getattr(value, field.name), f"{path}{field.name}"
        new = field.default if key in keys else at_defaults(old, keys, f"{key}.")
        if new != old:
            changed[field.name] = new
    return dataclasses.replace(value, **changed) if changed else value
