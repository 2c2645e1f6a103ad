"""Output of `--mode=show`: all options of a resolved configuration, with types and meanings."""

import dataclasses
import typing
from collections.abc import Iterator
from typing import Any, get_args

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator

from dml_jax.config import Config
from dml_jax.config.fields import IMPORT_PATH, LARGEST, LIMIT, Named, meanings
from dml_jax.console import RichConsole

CHANGED = "*"  # marks values that differ from the default


def options(section: Any, path: str = "") -> Iterator[tuple[str, Any, Any, str, str]]:
    """(key, value, default or None, type, meaning) of all options of a configuration or section."""
    hints = typing.get_type_hints(type(section), include_extras=True)
    texts = meanings(type(section))
    for field in dataclasses.fields(section):
        key, value = f"{path}{field.name}", getattr(section, field.name)
        if dataclasses.is_dataclass(value):
            yield from options(value, f"{key}.")
        elif isinstance(value, dict) and any(map(dataclasses.is_dataclass, value.values())):
            for name, entry in value.items():
                yield from options(entry, f"{key}.{name}.")
        else:
            default = field.default if field.default is not dataclasses.MISSING else None
            if field.default_factory is not dataclasses.MISSING:
                default = field.default_factory()
            yield key, value, default, type_name(hints[field.name]), texts.get(field.name, "")


def type_name(annotation: Any) -> str:
    """The name of a type in a list of options."""
    args = get_args(annotation)
    rules = getattr(annotation, "__metadata__", ())
    for rule in rules:
        if isinstance(rule, AfterValidator) and isinstance(rule.func, Named):
            names = ("a name",) if rule.func.names is None else rule.func.names
            return " | ".join((*(name or "empty" for name in names), IMPORT_PATH))
    if rules:
        bounds = [_bound(rule) for rule in rules if rule not in (Lt(LIMIT), Le(LARGEST))]
        return " ".join(filter(None, (type_name(args[0]), *bounds)))
    if str(annotation).startswith("typing.Literal"):
        return " | ".join(map(str, args))
    if typing.get_origin(annotation) is dict:
        return f"{args[0].__name__} -> {type_name(args[1])}"
    if args and args[-1] is Ellipsis:
        return f"{type_name(args[0])}, …"
    if args:
        return ", ".join(type_name(a) for a in args)
    return getattr(annotation, "__name__", str(annotation))


def _bound(rule: Any) -> str:
    signs = {Gt: (">", "gt"), Ge: (">=", "ge"), Lt: ("<", "lt"), Le: ("<=", "le")}
    sign, name = signs.get(type(rule), ("", ""))
    return f"{sign} {getattr(rule, name):g}" if sign else ""


def print_values(config: Config) -> None:
    """Prints every option with its value, type and meaning, and marks changed values."""
    console = RichConsole()
    section = ""
    for key, value, default, kind, meaning in options(config):
        head = key.partition(".")[0] if "." in key else ""
        if head != section:
            console.print()
            section = head
        changed = value != default
        note = f"  (default {_text(default)})" if changed and default is not None else ""
        explained = f"{kind}; {meaning}" if meaning else kind
        line = f"{CHANGED if changed else ' '} {key} = {_text(value)}{note}  # {explained}"
        console.print(line, style="bold" if changed else "dim", markup=False)
    console.print(f"\n{CHANGED} differs from the default", markup=False)


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ",".join(map(_text, value)) or "()"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} {_text(entry)}" for key, entry in value.items()) + "}"
    if isinstance(value, float):
        return f"{value:.12g}"
    return str(value) if value != "" else "''"
