"""The modules and functions that a configuration names, such as data sets, backbones and methods.

A name without dots is a module of this package, a name with dots an import path. Only the user's
configuration file or command line can import modules (`import_code`); a stored configuration, e.g.
of a model from the hub, can only name modules that are already imported.

A function's options are in a section with its name, next to the key that names the function:

    def one_against_many(labels, batch_size, images_per_class, seed, *, share: Probability = 0.5):

    --config.data.sampler=mypaper.one_against_many --config.data.one_against_many.share=0.3

They are its keyword-only arguments whose default is a number, text or tuple. Annotations define
their rules (see `fields`; by default, the type of the default value), the docstring their meaning.
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

# The packages below `dml_jax` of `data.name`, `backbone.name` and `method.name`.
MODULES = {"data": "data.formats", "backbone": "backbones", "method": "methods"}
# Types of sections; None where the type depends on `name`.
SECTIONS: dict[str, Any] = {
    "data": Data,
    "backbone": None,
    "method": None,
    "train": Train,
    "evaluation": Evaluation,
}
# A module defines one of these.
ENTRY_POINTS = {"data": ("load", "RECIPE"), "backbone": ("build",), "method": ("build",)}
VALUES = (bool, int, float, str, tuple)  # types of options
# Keyword arguments that the caller supplies, so they are not options.
SUPPLIED = ("batch_size", "images_per_class", "seed", "reduce")
# Modules that the configuration or command line of this process's user names.
_imported = set[str]()


def choices(kind: str) -> list[str]:
    """The names in this package for the key `name` of the section `kind`."""
    package = importlib.import_module(f"dml_jax.{MODULES[kind]}")
    names = (info.name for info in pkgutil.iter_modules(package.__path__))
    return sorted(name for name in names if _import(kind, name) is not None)


def plugin_module(kind: str, name: Any, key: str = "") -> ModuleType:
    """A data set, backbone or method, by its name in this package or its import path."""
    where = f"{key or f'{kind}.name'}={name!r}"
    if isinstance(name, str) and "." in name:
        module = imported(where, name)
        names = ENTRY_POINTS[kind]
        if not any(hasattr(module, entry) for entry in names):
            raise ConfigError(f"{where}: does not define {names[0]}(); see docs/guides/extend.md")
        return module
    if isinstance(name, str) and name.isidentifier() and (shipped := _import(kind, name)):
        return shipped
    remedy = _options_of_published(str(name)) if kind == "backbone" else ""
    remedy = remedy or suggest(str(name), choices(kind))
    raise ConfigError(f"{where}: unknown {kind.replace('data', 'data set')}; {remedy}")


def _options_of_published(name: str) -> str:
    """The options that select a published network by its authors' name; empty if it is unknown."""
    for network in choices("backbone"):
        module = plugin_module("backbone", network)
        if (published := getattr(module, "PUBLISHED", {}).get(name)) is not None:
            defaults, options = flatten(asdict(module.Config())), [f"name={network}"]
            for key, value in flatten(asdict(published)).items():
                if value != defaults[key] and key != "name":
                    text = ",".join(map(str, value)) if isinstance(value, list) else value
                    options.append(f"{key}={text}")
            arguments = " ".join(f"--config.backbone.{option}" for option in options)
            return f"{name} is a network of {network}: give {arguments}"
    return ""


def parts(kind: str, part: str) -> dict[str, ModuleType]:
    """The modules called `part` in this package's data sets, backbones or methods, by name."""
    package = importlib.import_module(f"dml_jax.{MODULES[kind]}")
    modules = {}
    for name in sorted(info.name for info in pkgutil.iter_modules(package.__path__) if info.ispkg):
        path = f"{package.__name__}.{name}.{part}"
        if importlib.util.find_spec(path):
            modules[name] = importlib.import_module(path)
    return modules


def _import(kind: str, name: str) -> ModuleType | None:
    """The module with that name; None if it is missing or a helper module."""
    path = f"dml_jax.{MODULES[kind]}.{name}"
    if importlib.util.find_spec(path) is None:
        return None
    module = importlib.import_module(path)
    return module if any(hasattr(module, entry) for entry in ENTRY_POINTS[kind]) else None


def imported(where: str, path: str) -> ModuleType:
    """The module at an import path; ConfigError unless it has been imported."""
    if path not in sys.modules:
        raise _not_trusted(where, path)
    return sys.modules[path]


def check_stored(values: Values, keys: Collection[str] | None = None) -> None:
    """Raises ConfigError if a stored configuration names code outside this package that
    `import_code` has not imported in this process; checks `keys`, or all.

    Otherwise, whoever publishes a run could have any function in memory called.
    """
    for key, name, path, _ in _import_paths(values):
        own = path.partition(".")[0] == __package__.partition(".")[0]
        if (keys is None or key in keys) and not own and path not in _imported:
            raise _not_trusted(f"{key}={name!r}", path)


def _not_trusted(where: str, path: str) -> ConfigError:
    return ConfigError(
        f"{where}: {path} was not imported, because a stored configuration names it; if you trust "
        "this code, give --trust_code (in Python, trust_code=True)"
    )


def function(key: str, path: str, owner: Any = None) -> Callable[..., Any]:
    """The function that the option `key` names by import path, with its options in the section
    `owner`; its module must have been imported."""
    name, _, attribute = path.rpartition(".")
    where = f"{key}={path!r}"
    target = getattr(imported(where, name), attribute, None)
    if not callable(target):
        raise ConfigError(f"{where}: {name} has no function {attribute}; see docs/guides/extend.md")
    own_options = getattr(owner, attribute, None)
    if not is_dataclass(own_options):
        return target
    return update_wrapper(partial(target, **vars(own_options)), target)


def takes(function: Callable[..., Any], argument: str) -> bool:
    """Whether a function has the argument."""
    return argument in inspect.signature(function).parameters


@cache
def options(function: Callable[..., Any]) -> Any:
    """The section type of a function's options and the `options` of its annotations."""
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
    """A section type extended by a section for each function, named by its last part."""
    kinds = {name.rpartition(".")[2]: options(function) for name, function in functions}
    for name in kinds.keys() & kind.__dataclass_fields__.keys():
        raise ConfigError(f"{name}: is already an option of the section; rename the function")
    members = {name: field(default_factory=each) for name, each in kinds.items()}
    attributes = {"__annotations__": kinds, "__reduce__": _reduced, "FUNCTIONS": (kind, *functions)}
    return section(type(kind.__name__, (kind,), attributes | members)) if kinds else kind


def _reduced(self: Any) -> Any:
    """Pickles a section for processes that read data: they cannot import its type."""
    return _restored, (self.FUNCTIONS, asdict(self))


def _restored(arguments: Any, values: Values) -> Any:
    return validate(with_options(*arguments), values)


def section_type(name: str, values: Values) -> Any:
    """The type of a section, extended by the options of the functions that its values name."""
    kind = SECTIONS[name]
    if kind is None:
        module = plugin_module(name, flatten(values).get(f"{name}.name"))
        kind = module.config_type(values[name]) if hasattr(module, "config_type") else module.Config
    by_path = {
        path: function(key, path)
        for key, path, _, marks in _import_paths(values)
        if key.startswith(f"{name}.") and not {Mark.CODE, Mark.BY_PATH} & marks
    }
    return with_options(kind, *by_path.items())


def import_module(key: str, name: str, path: str) -> None:
    """Imports a module that the user's configuration or command line names as `name`."""
    try:
        if "/" in path or not all(path.split(".")):  # importlib would need a package
            remedy = "join folder and file names with dots, e.g. mypaper.losses"
            raise ConfigError(f"is not an import path; {remedy}")
        importlib.import_module(path)
        _imported.add(path)
    except Exception as error:
        problem = f"cannot be imported ({type(error).__name__}: {error})"
        if isinstance(error, ModuleNotFoundError):
            problem += "; install it, or add its folder to PYTHONPATH"
        problem = str(error) if isinstance(error, UserError) else problem
        raise ConfigError(f"{key}={name!r}: {problem}") from error


def import_code(values: Values, keys: Collection[str] | None = None) -> None:
    """Imports the modules that a trusted configuration names by import path, at `keys` or all."""
    for key, name, path, marks in _import_paths(values):
        if keys is None or key in keys:
            import_module(key, name, path)
            if Mark.CODE not in marks:
                function(key, name)


def _import_paths(values: Values) -> Iterator[tuple[str, str, str, set[Mark]]]:
    """(key, value, module path, marks of the option) for each import path in a configuration."""
    flat = flatten(values)
    for key in (f"{kind}.name" for kind in MODULES):
        if "." in str(flat.get(key)):
            yield key, flat[key], flat[key], {Mark.CODE}
    # The method's module has been imported by now, unless it is not trusted.
    kinds = {name: kind or _options(name, flat) for name, kind in SECTIONS.items()}
    for key, value in flat.items():
        section, _, option = key.partition(".")
        annotations = declared(kinds.get(section), option)
        marks = {mark for mark in annotations if isinstance(mark, Mark)}
        names = value.split("+") if isinstance(value, str) else value
        # `resolve` reports values of another type.
        for name in names if isinstance(names, list | tuple) else ():
            if isinstance(name, str) and "." in name and any(map(names_code, annotations)):
                yield key, name, name.rpartition(".")[0], marks


def _options(kind: str, flat: Values) -> Any:
    """The `Config` of a backbone or method; None if its module is unknown."""
    with suppress(ConfigError):
        return plugin_module(kind, flat.get(f"{kind}.name")).Config
    return None
