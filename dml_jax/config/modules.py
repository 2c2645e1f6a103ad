"""The modules and functions that a configuration names: data sets, backbones, methods and others.

A name without dots is a module of this package, a name with dots an import path. Only the user's
configuration file or command line causes an import (`import_code`); a stored configuration, for
example that of a model from the hub, can name modules that are already imported.

A function's options are in a section of its name, beside the key that names it:

    def one_against_many(labels, batch_size, images_per_class, seed, *, share: Probability = 0.5):

    --config.data.sampler=mypaper.one_against_many --config.data.one_against_many.share=0.3

They are its keyword-only arguments with a number, text or tuple as default. Their types state the
rules (see `fields`; without one, the type of the default), the docstring the meaning.
"""

import importlib.util
import inspect
import pkgutil
import sys
import typing
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import asdict, field, is_dataclass
from functools import cache, partial, update_wrapper
from types import ModuleType
from typing import Any

from dml_jax.config.fields import Mark, Values, declared, flatten, names_code, section, validate
from dml_jax.config.sections import Data, Evaluation, Train
from dml_jax.errors import ConfigError, UserError, suggest

# Where the modules are that `data.name`, `backbone.name` and `method.name` name, below `dml_jax`.
MODULES = {"data": "data.formats", "backbone": "backbones", "method": "methods"}
# Sections with options; None where their type depends on `name`.
SECTIONS: dict[str, Any] = {
    "data": Data,
    "backbone": None,
    "method": None,
    "train": Train,
    "evaluation": Evaluation,
}
# Such a module defines one of these functions.
ENTRY_POINTS = {"data": ("load", "RECIPE"), "backbone": ("build",), "method": ("build",)}
# Keyword arguments that are no options: whoever calls a function gives them.
VALUES = (bool, int, float, str, tuple)  # types of options
SUPPLIED = ("batch_size", "images_per_class", "seed", "reduce")
_imported = set[str]()  # what a configuration or command line of this process's user names


def choices(kind: str) -> list[str]:
    """The names in this package for the key `name` of the section `kind`."""
    package = importlib.import_module(f"dml_jax.{MODULES[kind]}")
    names = (found.name for found in pkgutil.iter_modules(package.__path__))
    return sorted(name for name in names if _import(kind, name) is not None)


def plugin_module(kind: str, name: Any, key: str = "") -> ModuleType:
    """A data set, backbone or method, by its name in this package or its import path."""
    where = f"{key or f'{kind}.name'}={name!r}"
    if isinstance(name, str) and "." in name:
        found = imported(where, name)
        names = ENTRY_POINTS[kind]
        if not any(hasattr(found, entry) for entry in names):
            raise ConfigError(f"{where}: does not define {names[0]}(); see docs/guides/extend.md")
        return found
    if isinstance(name, str) and name.isidentifier() and (known := _import(kind, name)):
        return known
    remedy = _published(str(name)) if kind == "backbone" else ""
    remedy = remedy or suggest(str(name), choices(kind))
    raise ConfigError(f"{where}: unknown {kind.replace('data', 'data set')}; {remedy}")


def _published(name: str) -> str:
    """How to choose a published network by its authors' name; empty if there is none."""
    for network in choices("backbone"):
        found = plugin_module("backbone", network)
        if (published := getattr(found, "PUBLISHED", {}).get(name)) is not None:
            usual, options = flatten(asdict(found.Config())), [f"name={network}"]
            for key, value in flatten(asdict(published)).items():
                if value != usual[key] and key != "name":
                    text = ",".join(map(str, value)) if isinstance(value, list) else value
                    options.append(f"{key}={text}")
            given = " ".join(f"--config.backbone.{option}" for option in options)
            return f"{name} is a network of {network}: give {given}"
    return ""


def parts(kind: str, part: str) -> dict[str, ModuleType]:
    """The modules called `part` in this package's data sets, backbones or methods, by name."""
    package = importlib.import_module(f"dml_jax.{MODULES[kind]}")
    found = {}
    for name in sorted(info.name for info in pkgutil.iter_modules(package.__path__) if info.ispkg):
        path = f"{package.__name__}.{name}.{part}"
        if importlib.util.find_spec(path):
            found[name] = importlib.import_module(path)
    return found


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
        raise _not_trusted(where, path)
    return sys.modules[path]


def check_stored(values: Values, keys: Collection[str] | None = None) -> None:
    """Raises ConfigError if a stored configuration, at some keys or any, names other code than this
    package's and what `import_code` has imported in this process.

    Whoever publishes a run could otherwise have any function called that happens to be in memory.
    """
    for key, name, path, _ in _named(values):
        own = path.partition(".")[0] == __package__.partition(".")[0]
        if (keys is None or key in keys) and not own and path not in _imported:
            raise _not_trusted(f"{key}={name!r}", path)


def _not_trusted(where: str, path: str) -> ConfigError:
    return ConfigError(
        f"{where}: {path} is not imported, because a stored configuration names it; if you trust "
        "this code, give --trust_code (in Python, trust_code=True)"
    )


def function(key: str, path: str, owner: Any = None) -> Callable[..., Any]:
    """The function at an import path in a module that has been imported, for the option `key`, with
    the options that its section `owner` holds."""
    name, _, attribute = path.rpartition(".")
    where = f"{key}={path!r}"
    found = getattr(imported(where, name), attribute, None)
    if not callable(found):
        raise ConfigError(f"{where}: {name} has no function {attribute}; see docs/guides/extend.md")
    chosen = getattr(owner, attribute, None)
    if not is_dataclass(chosen):
        return found
    return update_wrapper(partial(found, **vars(chosen)), found)


def takes(function: Callable[..., Any], argument: str) -> bool:
    """Whether a function has the argument."""
    return argument in inspect.signature(function).parameters


@cache
def options(function: Callable[..., Any]) -> Any:
    """The section of a function's options, a type; with those of an annotation's `options`."""
    try:
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = inspect.signature(function).parameters.values()
    except (NameError, TypeError, ValueError) as error:
        raise ConfigError(f"{function}: its signature cannot be read ({error})") from None
    keywords = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
    names = [key for key, default in keywords.items() if isinstance(default, VALUES)]
    defaults = {key: keywords[key] for key in names if key not in SUPPLIED}
    kinds = {name: hints.get(name, type(default)) for name, default in defaults.items()}
    marks = (mark for hint in hints.values() for mark in getattr(hint, "__metadata__", ()))
    shared = [mark.options for mark in marks if getattr(mark, "options", None) is not None]
    for each in shared:
        defaults |= asdict(each)
        kinds |= typing.get_type_hints(type(each), include_extras=True)
    members = {"__doc__": function.__doc__, "__annotations__": kinds, **defaults}
    if hasattr(function, "inert"):
        members["inert"] = function.inert
    return section(type(function.__name__, tuple(map(type, shared)), members))


@cache
def with_options(kind: Any, *functions: tuple[str, Callable[..., Any]]) -> Any:
    """A section, a type, with the options of functions, by the last part of their names."""
    kinds = {name.rpartition(".")[2]: options(function) for name, function in functions}
    for name in kinds.keys() & kind.__dataclass_fields__.keys():
        raise ConfigError(f"{name}: the section has an option of this name; rename the function")
    members = {name: field(default_factory=each) for name, each in kinds.items()}
    made = {"__annotations__": kinds, "__reduce__": _reduced, "FUNCTIONS": (kind, *functions)}
    return section(type(kind.__name__, (kind,), made | members)) if kinds else kind


def _reduced(self: Any) -> Any:
    """For processes that read data: a type that `with_options` made cannot be imported."""
    return _restored, (self.FUNCTIONS, asdict(self))


def _restored(made_from: Any, values: Values) -> Any:
    return validate(with_options(*made_from), values)


def section_type(name: str, values: Values) -> Any:
    """The type of a section, which may depend on its values: with the options of the functions that
    they name."""
    kind = SECTIONS[name]
    if kind is None:
        found = plugin_module(name, flatten(values).get(f"{name}.name"))
        kind = found.config_type(values[name]) if hasattr(found, "config_type") else found.Config
    named = {
        path: function(key, path)
        for key, path, _, marks in _named(values)
        if key.startswith(f"{name}.") and not {Mark.CODE, Mark.BY_PATH} & marks
    }
    return with_options(kind, *named.items())


def import_module(key: str, name: str, path: str) -> None:
    """Imports a module that the user's configuration or command line names as `name`."""
    try:
        if "/" in path or not all(path.split(".")):  # importlib would want a package
            remedy = "join the names of folders and file by dots, e.g. mypaper.losses"
            raise ConfigError(f"is not an import path; {remedy}")
        importlib.import_module(path)
        _imported.add(path)
    except Exception as error:
        problem = f"cannot be imported ({type(error).__name__}: {error})"
        if isinstance(error, ModuleNotFoundError):
            problem += "; install it, or put its folder into PYTHONPATH"
        problem = str(error) if isinstance(error, UserError) else problem
        raise ConfigError(f"{key}={name!r}: {problem}") from error


def import_code(values: Values, keys: Collection[str] | None = None) -> None:
    """Imports the modules that a trusted configuration names by paths, or those at some keys."""
    for key, name, path, marks in _named(values):
        if keys is None or key in keys:
            import_module(key, name, path)
            if Mark.CODE not in marks:
                function(key, name)


def _named(values: Values) -> Iterator[tuple[str, str, str, set[Mark]]]:
    """(key, value, path of a module, what its annotation states) for each import path."""
    flat = flatten(values)
    for key in (f"{kind}.name" for kind in MODULES):
        if "." in str(flat.get(key)):
            yield key, flat[key], flat[key], {Mark.CODE}
    # By now, the module of the method is imported, unless it is not trusted.
    kinds = {name: kind or _options(name, flat) for name, kind in SECTIONS.items()}
    for key, value in flat.items():
        section, _, option = key.partition(".")
        stated = declared(kinds.get(section), option)
        marks = {mark for mark in stated if isinstance(mark, Mark)}
        names = value.split("+") if isinstance(value, str) else value
        # Another type is refused when the configuration is resolved.
        for name in names if isinstance(names, list | tuple) else ():
            if isinstance(name, str) and "." in name and any(map(names_code, stated)):
                yield key, name, name.rpartition(".")[0], marks


def _options(kind: str, flat: Values) -> Any:
    """The `Config` of a backbone or method; None if its module is not known."""
    with suppress(ConfigError):
        return plugin_module(kind, flat.get(f"{kind}.name")).Config
    return None
