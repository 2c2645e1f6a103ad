"""Sections of a configuration: frozen dataclasses with rules that are declared at the field and checked by pydantic.

    @section
    class Config:
        tau: Positive = 32.0  # scale of the distances

Rules across fields are checked in `__post_init__` with `require`.
"""

import dataclasses
import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, dataclass_transform

import pydantic
import pydantic.dataclasses
from annotated_types import Ge, Gt, Le, Lt, MinLen
from ml_collections import ConfigDict

from dml_jax.errors import ConfigError, suggest

T = TypeVar("T")
Values: TypeAlias = Mapping[str, Any] | ConfigDict  # nested

LIMIT = 2**31  # of whole numbers: sizes and steps are 32-bit integers in JAX
PositiveInt = Annotated[int, Gt(0), Lt(LIMIT)]
NonNegativeInt = Annotated[int, Ge(0), Lt(LIMIT)]
AtLeastTwo = Annotated[int, Ge(2), Lt(LIMIT)]
LARGEST = 3.4028234663852886e38  # float32; JAX would make infinity of larger numbers
Positive = Annotated[float, Gt(0), Le(LARGEST)]
NonNegative = Annotated[float, Ge(0), Le(LARGEST)]
Probability = Annotated[float, Ge(0), Le(1)]
Fraction = Annotated[float, Ge(0), Lt(1)]  # 1 excluded
NonEmpty = MinLen(1)
Dtype = Literal["float32", "bfloat16"]


class BrokenRule(ValueError):
    """A rule across fields that does not hold."""

    def __init__(self, key: str, value: Any, rule: str):
        super().__init__(f"{key}={value!r}: {rule}")
        self.key, self.value, self.rule = key, value, rule


def require(condition: bool, key: str, value: Any, rule: str) -> None:
    """Raises BrokenRule unless `condition` holds; for `__post_init__`, with the key relative to the section."""
    if not condition:
        raise BrokenRule(key, value, rule)


def with_precision(backbone: Any, dtype: str | None) -> Any:
    """A network with another `dtype` of its activations; one without this option computes as before."""
    return dataclasses.replace(backbone, dtype=dtype) if dtype and hasattr(backbone, "dtype") else backbone


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def section(cls: type[T]) -> type[T]:
    """Makes a class a frozen dataclass that validates types and rules, and raises ConfigError when constructed."""
    config = pydantic.ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
    made: Any = pydantic.dataclasses.dataclass(cls, frozen=True, config=config)
    validated = made.__init__

    @functools.wraps(validated)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        try:
            validated(self, *args, **kwargs)
        except pydantic.ValidationError as error:
            path = getattr(made, "KEY", "")
            raise ConfigError(_message(error, path, list(keys(made, path)))) from None

    made.__init__ = init
    return made


def validate(kind: type[T], values: Values, path: str = "") -> T:
    """A section from nested values; missing keys take their defaults, lists become tuples.

    Raises ConfigError for an unknown or missing key, a wrong type or a broken rule; `path` is the key of the section.
    """
    nested = values.to_dict() if isinstance(values, ConfigDict) else values
    try:
        # JSON has no tuples and no classes, so that strict validation accepts lists and mappings in their place.
        return pydantic.TypeAdapter(kind).validate_json(json.dumps(nested))
    except pydantic.ValidationError as error:
        raise ConfigError(
            _message(error, path, [*flatten(values, f"{path}." if path else ""), *keys(kind, path)])
        ) from None
    except TypeError as error:
        raise ConfigError(f"{path}: holds a value of a type that no key has ({error})") from None


def _message(problems: pydantic.ValidationError, path: str, known: list[str]) -> str:
    """One sentence for the first of pydantic's errors, unknown keys before others: key, value, rule, remedy."""
    errors = problems.errors(include_url=False)
    error = min(errors, key=lambda e: e["type"] not in ("unexpected_keyword_argument", "extra_forbidden"))
    places = [part for part in error["loc"] if not (isinstance(part, str) and part.startswith(("tuple[", "dict[")))]
    key = path
    for place in places:
        key += f"[{place}]" if isinstance(place, int) else f".{place}" if key else str(place)
    value, context = error["input"], error.get("ctx", {})
    match error["type"]:
        case "unexpected_keyword_argument" | "extra_forbidden":
            return f"{key}: there is no such key; {suggest(key, [k for k in known if k != key])}"
        case "missing" | "missing_argument" if not isinstance(places[-1], int):
            return f"{key}: missing, and it has no default"
        case "value_error" if isinstance(context.get("error"), BrokenRule):
            broken = context["error"]
            return f"{key}.{broken.key}={broken.value!r}: {broken.rule}" if key else str(broken)
        case "literal_error":
            choices = re.findall(r"'([^']*)'", context["expected"])
            return f"{key}={value!r}: {suggest(str(value), choices)}"
        case "greater_than":
            rule = "must be positive" if context["gt"] == 0 else f"must be greater than {context['gt']}"
        case "greater_than_equal":
            rule = "must not be negative" if context["ge"] == 0 else f"must be at least {context['ge']}"
        case "less_than":
            rule = f"must be less than {context['lt']}"
        case "less_than_equal":
            rule = f"must be at most {context['le']}"
        case "finite_number":
            rule = "must be a finite number"
        case "too_short" if not value:
            rule = "must not be empty"
        case "missing" | "missing_argument" | "too_short" | "too_long":
            key = key.removesuffix(f"[{places[-1]}]")
            rule = "has the wrong number of values"
        case "tuple_type":
            rule = "must be a list of values"
        case "dataclass_type" | "dict_type":
            rule = "must be a section"
        case kind if kind.endswith(("_type", "_parsing")):
            names = {"int": "a whole number", "float": "a number", "string": "text", "bool": "true or false"}
            wanted = names.get(kind.rpartition("_")[0], kind.rpartition("_")[0])
            rule = f"must be {wanted}, not {type(value).__name__}"
        case _:
            rule = error["msg"][0].lower() + error["msg"][1:]
    return f"{key}={value!r}: {rule}"


def keys(kind: type, path: str = "") -> Iterator[str]:
    """The dotted keys of a section and of the sections in it."""
    for field in dataclasses.fields(kind):
        key = f"{path}.{field.name}" if path else field.name
        inner = field.type if isinstance(field.type, type) and dataclasses.is_dataclass(field.type) else None
        if inner is not None:
            yield from keys(inner, key)
        else:
            yield key


def flatten(values: Values, prefix: str = "") -> dict[str, Any]:
    """Nested values -> dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping | ConfigDict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = list(value) if isinstance(value, tuple) else value
    return flat
