"""What an option needs to have an effect: declared where the option is, checked here.

    crop_scale: Annotated[tuple[Positive, Positive], Needs("data.crop='random_resized'", …)] = (0.08, 1.0)

`Needs` concerns an option that is not used at all otherwise: its value is dropped, which leaves the default. `Rule`
concerns a value that has an effect, but not the one that its name promises, and `RunRule` one that is pointless in a
run whose data and length are known. Where results would mislead, a value that the user gave is an error. One that was
inherited, from a recipe or from the configuration of an earlier run, never is.
"""

import dataclasses
import typing
from collections.abc import Callable, Collection, Iterator
from functools import cache
from typing import Any, NamedTuple, TypeVar

from dml_jax.errors import ConfigError

HEAD = "head."  # beginning of the keys of a second section of the kind of `train`
Given = Collection[str] | None  # dotted keys that the user gave; None: all
Config = TypeVar("Config")


@dataclasses.dataclass(frozen=True)
class Needs:
    """What an option is not used without."""

    what: str  # completes "has no effect without"
    holds: Callable[[Any], Any]  # whole configuration -> whether it is there
    misleads: bool = False  # whether results could be taken for those with the option


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a value has to satisfy in order to mean what it says."""

    problem: str  # what is wrong otherwise, and how to fix it
    holds: Callable[[Any], Any]  # whole configuration -> whether the value satisfies it
    also: tuple[str, ...] = ()  # other keys of the user that make this an error


class Run(NamedTuple):
    """What is known of a run once its data is."""

    steps: int
    epoch_end: Callable[[int], int]  # steps until the end of an epoch, of which those of the warm-up are not counted
    first_evaluation: int  # step; 0 if none precedes the last step
    candidates: int  # number of images that a query of the test split is compared with
    tables: bool  # whether parameters are spread over the devices by class


@dataclasses.dataclass(frozen=True)
class RunRule:
    """A `Rule` about a configuration and its `Run`, the arguments of `holds`."""

    problem: str
    holds: Callable[[Any, Run], Any]
    misleads: bool = True


class Problem(NamedTuple):
    """An option that needs something else."""

    key: str
    text: str  # one sentence
    misleads: bool  # whether it is an error if the user gave the option
    dropped: bool  # whether the value is not used and therefore dropped
    also: tuple[str, ...] = ()  # see `Rule`


def dropped(key: str, value: Any, what: str, *, misleads: bool) -> Problem:
    """The problem of an option that is not used; see `Needs`."""
    text = f"{key}={value!r}: has no effect without {what}; set that, or remove this"
    return Problem(key, text, misleads, dropped=True)


def unused(config: Any) -> list[Problem]:
    """Options of a configuration that differ from their defaults but are not used."""
    return [
        dropped(key, value, _named(key, need.what), misleads=need.misleads)
        for key, value, default, need in _declared(config)
        if isinstance(need, Needs) and value != default and not need.holds(_seen(config, key))
    ]


def settled(config: Config) -> tuple[Config, list[Problem]]:
    """The configuration with the defaults of the options that are not used, and what is said of those."""
    problems = list[Problem]()
    while found := unused(config):
        problems += found
        config = _reset(config, {problem.key for problem in found})
    return config, problems


def broken(config: Any) -> list[Problem]:
    """The rules of a configuration that do not hold."""
    return [
        Problem(key, f"{key}={value!r}: {_named(key, rule.problem)}", True, False, rule.also)
        for key, value, _, rule in _declared(config)
        if isinstance(rule, Rule) and not rule.holds(_seen(config, key))
    ]


def broken_by_run(config: Any, run: Run, head: Run | None = None) -> list[Problem]:
    """The rules of a configuration that do not hold in its run, or in that of its `head`."""
    return [
        Problem(key, f"{key}={value!r}: {_named(key, rule.problem)}", rule.misleads, False)
        for key, value, _, rule in _declared(config)
        if isinstance(rule, RunRule) and (of := head if key.startswith(HEAD) else run)
        if not rule.holds(_seen(config, key), of)
    ]


def report(problems: Collection[Problem], given: Given, warn: Callable[[str], None] | None = None) -> None:
    """Raises ConfigError for a misleading value of the user; warns of the rest, except of inherited values dropped."""
    for problem in problems:
        own = given is None or not {problem.key, *problem.also}.isdisjoint(given)
        if own and problem.misleads:
            raise ConfigError(problem.text)
        if warn is not None and (own or not problem.dropped):
            warn(problem.text)


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
    """The configuration that an option is looked at in: those of `head` are the `train` of a run of their own."""
    return dataclasses.replace(config, train=config.head, head=None) if key.startswith(HEAD) else config


def _named(key: str, text: str) -> str:
    """What is said of an option of `train`, in the words of its section."""
    return text.replace("train.", HEAD) if key.startswith(HEAD) else text


def _declared(section: Any, path: str = "") -> Iterator[tuple[str, Any, Any, Needs | Rule | RunRule]]:
    """(key, value, default, what is declared) of all options of a section and of those in it."""
    kind: Any = type(section)
    for field in dataclasses.fields(section):
        key, value = f"{path}{field.name}", getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            yield from _declared(value, f"{key}.")
        elif isinstance(value, dict):
            for name, entry in value.items():
                if dataclasses.is_dataclass(entry):
                    yield from _declared(entry, f"{key}.{name}.")
        for declared in _declarations(kind).get(field.name, ()):
            yield key, value, field.default, declared


@cache
def _declarations(kind: type) -> dict[str, tuple[Needs | Rule | RunRule, ...]]:
    hints = typing.get_type_hints(kind, include_extras=True)
    return {
        name: tuple(part for part in getattr(hint, "__metadata__", ()) if isinstance(part, Needs | Rule | RunRule))
        for name, hint in hints.items()
    }
