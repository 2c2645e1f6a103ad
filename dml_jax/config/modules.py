"""The modules and functions that a configuration names: data sets, backbones, methods, losses,
samplers and others.

A name without dots is a module of this package, a name with dots an import path, so that the code
of a paper needs no place in this package. Only the user's own configuration file or command line
causes an import (`import_code`); a stored configuration, for example of a model from the hub, can
name modules that are already imported.
"""

import importlib.util
import pkgutil
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import asdict
from types import ModuleType
from typing import Any

from dml_jax.config.fields import Mark, Values, declared, flatten, names_code
from dml_jax.config.sections import Data, Evaluation, Train
from dml_jax.errors import ConfigError, UserError, suggest

# Packages, below `dml_jax`, of the modules that `data.name`, `backbone.name` and `method.name`
# name.
MODULES = {"data": "data.formats", "backbone": "backbones", "method": "methods"}
# Those of every configuration.
SECTIONS = {"data": Data, "train": Train, "head": Train, "evaluation": Evaluation}
# Such a module defines one of these functions.
ENTRY_POINTS = {"data": ("load", "RECIPE"), "backbone": ("build",), "method": ("build",)}


def choices(kind: str) -> list[str]:
    """The names in this package for `data.name`, `backbone.name` or `method.name`, where `kind` is
    the section."""
    package = importlib.import_module(f"dml_jax.{MODULES[kind]}")
    names = (found.name for found in pkgutil.iter_modules(package.__path__))
    return sorted(name for name in names if _import(kind, name) is not None)


def module(kind: str, name: Any, key: str = "") -> ModuleType:
    """The module of a data set, backbone or method, by its name in this package or its import
    path."""
    where = f"{key or f'{kind}.name'}={name!r}"
    if isinstance(name, str) and "." in name:
        found = imported(where, name)
        if not any(hasattr(found, name) for name in ENTRY_POINTS[kind]):
            raise ConfigError(
                f"{where}: does not define {ENTRY_POINTS[kind][0]}(); see docs/guides/extend.md"
            )
        return found
    if isinstance(name, str) and name.isidentifier() and (own := _import(kind, name)):
        return own
    remedy = _published(str(name)) if kind == "backbone" else ""
    remedy = remedy or suggest(str(name), choices(kind))
    raise ConfigError(f"{where}: unknown {kind.replace('data', 'data set')}; {remedy}")


def _published(name: str) -> str:
    """How to choose a published network, whose name is no module's; empty if there is none of this
    name."""
    for network in choices("backbone"):
        own = module("backbone", network)
        if (published := getattr(own, "PUBLISHED", {}).get(name)) is not None:
            given, usual = flatten(asdict(published)), flatten(asdict(own.Config()))
            options = "".join(
                f" --config.backbone.{key}={','.join(map(str, value)) if isinstance(value, list) else value}"  # noqa: E501
                for key, value in given.items()
                if value != usual[key] and key != "name"
            )
            return (
                f"{name} is a network of {network}: give --config.backbone.name={network}{options}"
            )
    return ""


def parts(kind: str, part: str) -> dict[str, ModuleType]:
    """The modules called `part` of the data sets, backbones or methods in this package, by the
    names of these."""
    package = importlib.import_module(f"dml_jax.{MODULES[kind]}")
    names = sorted(found.name for found in pkgutil.iter_modules(package.__path__) if found.ispkg)
    paths = {name: f"{package.__name__}.{name}.{part}" for name in names}
    return {
        name: importlib.import_module(path)
        for name, path in paths.items()
        if importlib.util.find_spec(path)
    }


def backbone_is_frozen(config: Any) -> bool:
    """Whether no part of a configuration's backbone is trained, of which the method may have a
    group of another name.

    Such a method has it as BACKBONE_GROUP.
    """
    names = (
        "backbone",
        getattr(module("method", config.method.name), "BACKBONE_GROUP", "backbone"),
    )
    parts = [group for name, group in config.train.groups.items() if name.split("/")[0] in names]
    return bool(parts) and all(group.freeze for group in parts)


def _import(kind: str, name: str) -> ModuleType | None:
    """The module of that name, unless it is missing or one of the package's helpers."""
    path = f"dml_jax.{MODULES[kind]}.{name}"
    if importlib.util.find_spec(path) is None:
        return None
    found = importlib.import_module(path)
    return found if any(hasattr(found, entry) for entry in ENTRY_POINTS[kind]) else None


def imported(where: str, path: str) -> ModuleType:
    """The module at an import path; raises ConfigError unless it has been imported."""
    if path not in sys.modules:
        raise ConfigError(
            f"{where}: {path} is not imported, because a stored configuration names it; if you "
            "trust this "
            "code, "
            "give "
            "--trust_code (in Python, trust_code=True), or import it yourself"
        )
    return sys.modules[path]


def function(key: str, path: str) -> Callable[..., Any]:
    """The function at an import path whose module has been imported; `key` is the option that names
    it."""
    name, _, attribute = path.rpartition(".")
    found = getattr(imported(f"{key}={path!r}", name), attribute, None)
    if not callable(found):
        raise ConfigError(
            f"{key}={path!r}: {name} has no function {attribute}; see docs/guides/extend.md"
        )
    return found


def import_module(key: str, name: str, path: str) -> None:
    """Imports a module that the user's own configuration or command line names as `name`."""
    try:
        importlib.import_module(path)
    except Exception as error:
        remedy = (
            "; install it, or put its folder into PYTHONPATH"
            if isinstance(error, ModuleNotFoundError)
            else ""
        )
        message = f"cannot be imported ({type(error).__name__}: {error}){remedy}"
        raise ConfigError(
            f"{key}={name!r}: {error if isinstance(error, UserError) else message}"
        ) from error


def import_code(values: Values, keys: Collection[str] | None = None) -> None:
    """Imports the modules that a trusted configuration names by import paths, or only those at some
    dotted keys."""
    for key, name, path, checked in _named(values):
        if keys is not None and key not in keys:
            continue
        import_module(key, name, path)
        if checked:
            function(key, name)


def _named(values: Values) -> Iterator[tuple[str, str, str, bool]]:
    """(key, value, path of a module, whether it must have a function) of each import path in a
    configuration."""
    flat = flatten(values)
    for key in (f"{kind}.name" for kind in MODULES):
        if "." in str(flat.get(key)):
            yield key, flat[key], flat[key], False
    # By now, the module of the method is imported, unless it is not trusted.
    kinds = SECTIONS | {
        kind: _options(kind, flat.get(f"{kind}.name")) for kind in ("backbone", "method")
    }
    for key, value in flat.items():
        section, _, option = key.partition(".")
        marks = [mark for mark in declared(kinds.get(section), option) if names_code(mark)]
        names = value.split("+") if isinstance(value, str) else value
        # Another type is refused when the configuration is resolved.
        for name in names if marks and isinstance(names, list | tuple) else ():
            if isinstance(name, str) and "." in name:
                yield key, name, name.rpartition(".")[0], Mark.CODE not in marks


def _options(kind: str, name: Any) -> Any:
    """The `Config` of a backbone or method; None if its module is not known."""
    with suppress(ConfigError):
        return module(kind, name).Config
    return None
