"""Conditions of options, declared at the option and checked here.

    crop_scale: Annotated[tuple[Positive, Positive], Needs("data.crop='random_resized'", …)] = (0.08, 1.0)

A value that breaks its condition is an error if the command line sets it. If a file does, the user is warned.
"""

import dataclasses
import typing
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cache
from typing import Any, NamedTuple, TypeVar

from dml_jax.errors import ConfigError

HEAD = "head."  # prefix of the keys of the second section of the type `Train`
Config = TypeVar("Config")
Problem = tuple[str, str]  # key and message


@dataclasses.dataclass(frozen=True)
class Needs:
    """Condition under which an option takes effect; where it does not hold, the option takes its default."""

    what: str  # completes "has no effect without"
    holds: Callable[[Any], Any]  # of the whole configuration


@dataclasses.dataclass(frozen=True)
class Rule:
    """Condition under which a value means what it says."""

    problem: str  # the problem otherwise, and its remedy
    holds: Callable[[Any], Any]  # of the whole configuration


class Run(NamedTuple):
    """Facts about a run that are known once its data is loaded."""

    steps: int
    epoch_end: Callable[[int], int]  # number of steps until the end of an epoch, counted after the warm-up
    first_evaluation: int  # step; 0 if none precedes the last step
    candidates: int  # number of images that a query of the test split is compared with
    tables: bool  # whether parameters are spread over the devices by class


@dataclasses.dataclass(frozen=True)
class RunRule:
    """A `Rule` about a configuration and its `Run`."""

    problem: str
    holds: Callable[[Any, Run], Any]


def settled(config: Config) -> tuple[Config, list[Problem]]:
    """The configuration with the defaults of all options without effect, and a problem for each of them."""
    problems: dict[str, str] = {}
    while found := dict(_without_effect(config)):
        problems |= found
        config = _reset(config, found)
    return config, list(problems.items())


def _without_effect(config: Any) -> Iterator[Problem]:
    for key, value, default, need in _declared(config):
        if isinstance(need, Needs) and value != default and not need.holds(_seen(config, key)):
            yield key, f"{key}={value!r}: has no effect without {_named(key, need.what)}; set that, or remove this"


def broken(config: Any, run: Run | None = None, head: Run | None = None) -> Iterator[Problem]:
    """Broken rules of a configuration or, with its run, broken rules about the run and the training of its head."""
    for key, value, _, rule in _declared(config):
        if isinstance(rule, Rule) and run is None:
            holds = rule.holds(_seen(config, key))
        elif isinstance(rule, RunRule) and (of := head if key.startswith(HEAD) else run):
            holds = rule.holds(_seen(config, key), of)
        else:
            continue
        if not holds:
            yield key, f"{key}={value!r}: {_named(key, rule.problem)}"


def report(problems: Iterable[Problem], typed: Collection[str], warn: Callable[[str], None] | None) -> None:
    """Raises ConfigError for a problem of a key that the command line sets, and warns of the others."""
    for key, text in problems:
        if key in typed:
            raise ConfigError(text)
        if warn is not None:
            warn(text)


def _reset(section: Any, keys: Collection[str], path: str = "") -> Any:
    """A section with the defaults of some dotted keys."""

    def of(value: Any, key: str) -> Any:
        if key in keys:
            return getattr(type(section), key.rpartition(".")[2])
        if isinstance(value, dict):
            return {name: of(entry, f"{key}.{name}") for name, entry in value.items()}
        return _reset(value, keys, f"{key}.") if dataclasses.is_dataclass(value) else value

    values = {field.name: getattr(section, field.name) for field in dataclasses.fields(section)}
    return dataclasses.replace(section, **{name: of(value, f"{path}{name}") for name, value in values.items()})


def _seen(config: Any, key: str) -> Any:
    """The configuration to which the condition of an option refers: for `head`, the one of its own run."""
    return dataclasses.replace(config, train=config.head, head=None) if key.startswith(HEAD) else config


def _named(key: str, text: str) -> str:
    return text.replace("train.", HEAD) if key.startswith(HEAD) else text


def _declared(section: Any, path: str = "") -> Iterator[tuple[str, Any, Any, Needs | Rule | RunRule]]:
    """(key, value, default, condition) of all conditions in a section."""
    kind: Any = type(section)
    conditions = _conditions(kind)
    for field in dataclasses.fields(section):
        key, value = f"{path}{field.name}", getattr(section, field.name)
        for name, entry in value.items() if isinstance(value, dict) else [("", value)]:
            if dataclasses.is_dataclass(entry):
                yield from _declared(entry, f"{key}.{name}." if name else f"{key}.")
        for condition in conditions.get(field.name, ()):
            yield key, value, field.default, condition


@cache
def _conditions(kind: type) -> dict[str, tuple[Needs | Rule | RunRule, ...]]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {
        name: tuple(part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Needs | Rule | RunRule))
        for name, hint in hints.items()
    }
