"""Sections of a configuration: frozen dataclasses with rules that are declared at the field and
checked by pydantic.

    @section
    class Config:
        tau: Positive = 32.0  # scale of the distances

Rules across fields are checked in `__post_init__` with `require`.
"""

import dataclasses
import enum
import functools
import json
import typing
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, dataclass_transform, get_args

import pydantic
import pydantic.dataclasses
import pydantic_core
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
HEAD = "head."  # prefix of the keys of the second section of the type `Train`
Config = TypeVar("Config")
IMPORT_PATH = "an import path"


@dataclasses.dataclass(frozen=True)
class Named:
    """The rule of text that is a name of this package or the import path of a function."""

    names: tuple[str, ...]

    def __call__(self, value: str) -> str:
        if value not in self.names and "." not in value:
            names = ", ".join(filter(None, (*self.names, IMPORT_PATH)))
            raise pydantic_core.PydanticCustomError(
                "name", "Input should be one of {names}", {"names": names}
            )
        return value


class Effect(enum.Enum):
    """What another value of an option changes at most; stated in its annotation, or in that of its
    section.

        k: Annotated[PositiveInt, Effect.NONE] = 10  # neighbours, of the results only

    An option without it is taken to change the trained model: a run is only resumed with the same
    value.
    """

    NONE = "no model"  # but logs, speed, or what is measured in the end
    SELECTION = "which model is selected"  # unless train.select is "last"
    # So also the selection; `evaluation.readings` may set such options.
    EMBEDDING = "the embedding of a trained model"


class Mark(enum.Enum):
    """Further facts that the annotation of an option states."""

    SAME_EXPERIMENT = "published numbers also hold for other values"
    PATH = "a path"
    CODE = "names functions, also by import paths, which the option's owner checks"


def require(condition: bool, key: str, value: Any, rule: str) -> None:
    """Raises ValueError unless `condition` holds; for `__post_init__`, with the key relative to the
    section."""
    if not condition:
        raise ValueError(f"{key}={value!r}: {rule}")


def with_precision(backbone: Any, dtype: str | None) -> Any:
    """A network with another `dtype` of its activations; one without this option computes as
    before."""
    return (
        dataclasses.replace(backbone, dtype=dtype)
        if dtype and hasattr(backbone, "dtype")
        else backbone
    )


@dataclass_transform(frozen_default=True, field_specifiers=(dataclasses.field,))
def section(cls: type[T]) -> type[T]:
    """Makes a class a frozen dataclass that validates types and rules, and raises ConfigError when
    constructed."""
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

    Raises ConfigError for an unknown or missing key, a wrong type or a broken rule; `path` is the
    key of the section.
    """
    nested = values.to_dict() if isinstance(values, ConfigDict) else values
    try:
        # JSON has no tuples and no classes, so that strict validation accepts lists and mappings in
        # their place.
        return pydantic.TypeAdapter(kind).validate_json(json.dumps(nested))
    except pydantic.ValidationError as error:
        raise ConfigError(
            _message(error, path, [*flatten(values, f"{path}." if path else ""), *keys(kind, path)])
        ) from None


def _message(problems: pydantic.ValidationError, path: str, known: list[str]) -> str:
    """One sentence for the first of pydantic's errors, unknown keys before others: key, value,
    rule, remedy."""
    errors = problems.errors(include_url=False)
    error = min(
        errors, key=lambda e: e["type"] not in ("unexpected_keyword_argument", "extra_forbidden")
    )
    places = [
        part
        for part in error["loc"]
        if not (isinstance(part, str) and part.startswith(("tuple[", "dict[")))
    ]
    key = path
    for place in places:
        key += f"[{place}]" if isinstance(place, int) else f".{place}" if key else str(place)
    value, context = error["input"], error.get("ctx", {})
    match error["type"]:
        case "unexpected_keyword_argument" | "extra_forbidden":
            return f"{key}: there is no such key; {suggest(key, [k for k in known if k != key])}"
        case "missing" | "missing_argument" | "too_long" if error[
            "type"
        ] == "too_long" or isinstance(places[-1], int):
            return (
                f"{key.removesuffix(f'[{places[-1]}]')}={value!r}: has the wrong number of values"
            )
        case "missing" | "missing_argument":
            return f"{key}: missing, and it has no default"
        case "value_error":
            return f"{key}.{context['error']}" if key else str(context["error"])
    return f"{key}={value!r}: {error['msg'].replace('Input should', 'must')}"


def keys(kind: type, path: str = "") -> Iterator[str]:
    """The dotted keys of a section and of the sections in it."""
    for field in dataclasses.fields(kind):
        key = f"{path}.{field.name}" if path else field.name
        if isinstance(kept := _bare(_hints(kind)[field.name]), type) and dataclasses.is_dataclass(
            kept
        ):
            yield from keys(kept, key)
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


def declared(kind: Any, key: str) -> list[Any]:
    """What annotations state about the option at a dotted key below a section's type: of sections
    first, its own last.

    Keys that the type does not have add nothing.
    """
    found: list[Any] = []
    for part in key.split("."):
        if typing.get_origin(kind) is dict:
            kind = get_args(kind)[1]
            continue
        kind = next(
            (arg for arg in (kind, *get_args(kind)) if dataclasses.is_dataclass(arg)), None
        )  # "Section | None"
        if kind is None or part not in _hints(kind):
            break
        found += _stated(_hints(kind)[part])
        kind = _bare(_hints(kind)[part])
    return found


def effect(kind: Any, key: str) -> Effect | None:
    """The `Effect` that is declared for an option; None for one that changes the trained model."""
    return next((mark for mark in reversed(declared(kind, key)) if isinstance(mark, Effect)), None)


def names_code(mark: Any) -> bool:
    """Whether something in an annotation says that the option names functions."""
    return mark is Mark.CODE or isinstance(getattr(mark, "func", None), Named)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


def _bare(hint: Any) -> Any:
    """A type without what `Annotated` states."""
    return hint.__origin__ if hasattr(hint, "__metadata__") else hint


def _stated(hint: Any) -> list[Any]:
    """What a type states in `Annotated`, also about the values in a tuple."""
    inner = [mark for part in get_args(hint) if part is not hint for mark in _stated(part)]
    return [*inner, *getattr(hint, "__metadata__", ())]


@dataclasses.dataclass(frozen=True)
class Needs:
    """Condition under which an option takes effect; where it does not hold, the option takes its
    default."""

    what: str  # completes "has no effect without"
    holds: Callable[[Any], Any]  # of the whole configuration


@dataclasses.dataclass(frozen=True)
class Doubt:
    """A rule across sections that a value may break in a file, with a warning, but not on the
    command line."""

    problem: Callable[
        [Any], str
    ]  # of the whole configuration: what is wrong, and the remedy; empty if nothing is


def settled(config: Config) -> tuple[Config, list[tuple[str, str]]]:
    """The configuration with the defaults of all options without effect, and key and message for
    each of them.

    Messages about doubtful values, which stay, come last.
    """
    problems: dict[str, str] = {}
    while True:
        doubts: dict[str, str] = {}
        if (reset := _reset(config, "", config, problems, doubts)) == config:
            return config, [*problems.items(), *doubts.items()]
        config = reset


def _reset(
    value: Any, key: str, config: Any, problems: dict[str, str], doubts: dict[str, str]
) -> Any:
    """A value of a configuration with the defaults of options that have no effect in it, which
    become problems."""
    if isinstance(value, dict):
        return {
            name: _reset(entry, f"{key}.{name}", config, problems, doubts)
            for name, entry in value.items()
        }
    if not dataclasses.is_dataclass(value):
        return value
    kind: Any = type(value)
    changed: dict[str, Any] = {}
    for field in dataclasses.fields(value):
        old, option = getattr(value, field.name), f"{key}.{field.name}" if key else field.name
        new = _reset(old, option, config, problems, doubts)
        of_head = option.startswith(HEAD)  # then the rules are about the run of the head
        seen = dataclasses.replace(config, train=config.head, head=None) if of_head else config
        for rule in getattr(_hints(kind)[field.name], "__metadata__", ()):
            if isinstance(rule, Needs) and old != field.default and not rule.holds(seen):
                what = rule.what.replace("train.", HEAD) if of_head else rule.what
                problems[option] = (
                    f"{option}={old!r}: has no effect without {what}; set that, or remove this"
                )
                new = field.default
            elif isinstance(rule, Doubt) and (text := rule.problem(seen)):
                doubts[option] = f"{option}={old!r}: {text}"
        if new != old:
            changed[field.name] = new
    return dataclasses.replace(value, **changed) if changed else value  # type: ignore[type-var]
