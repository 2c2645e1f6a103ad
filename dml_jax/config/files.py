"""Finds and runs configuration files, and applies the overrides of the command line."""

import ast
import dataclasses
import json
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, is_dataclass
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

from ml_collections import ConfigDict

from dml_jax.config import modules
from dml_jax.config.fields import flatten
from dml_jax.config.resolve import Config, resolve, same_experiment
from dml_jax.errors import ConfigError, UserError, suggest
from dml_jax.files import expand_path, read_json

PROTOCOLS = ("clean", "paper")
# The authors' protocol for a file that does not state one as PAPER_PROTOCOL.
AUTHORS = {"train.select": "test", "evaluation.protocol": "paper"}
WANTED = {bool: "true or false", int: "a whole number", float: "a number"}
PRECISION = {"train.precision": "float32"}  # all authors': their GPUs had nothing less


def configs_root() -> Path:
    """The directory that holds `configs`: inside the installed package, or the checkout."""
    package = Path(__file__).parents[1]
    return next(
        root for root in (package / "shipped", package.parent) if (root / "configs").is_dir()
    )


def known_files(option: str) -> dict[str, Path]:
    """The package's files that an option can name: configurations, or studies.

    Those of one paper have the name of its folder.
    """
    root = configs_root() / "configs"
    if option == "--study":
        papers = {file.parent.name: file for file in root.glob("*/studies.py")}
        return papers | {file.stem: file for file in root.glob("studies/*.py")}
    return {file.stem: file for file in root.glob("*_*.py")}  # DATA_METHOD.py; others are imported


def find_file(option: str, path: str) -> Path:
    """A user's file, or one of the package, "configs/cars_baseline.py" or "cars_baseline"."""
    file = expand_path(option, path)
    if file.is_file():
        return file
    root, known = configs_root(), known_files(option)
    remedy = f"give a Python file, or one of the package: {', '.join(sorted(known))}"
    known |= {str(file.relative_to(root).with_suffix("")): file for file in known.values()}
    name = path.removesuffix(".py")
    if name in known:
        return known[name]
    if near := get_close_matches(name, known, 1):
        remedy = f"did you mean {known[near[0]].relative_to(root)}?"
    raise ConfigError(f"{option}={path}: there is no such file; {remedy}")


def run_file(option: str, path: str) -> ModuleType:
    """Executes the file that `find_file` returns; raises ConfigError for an error in it."""
    file = find_file(option, path)
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    parents = [*file.resolve().parents]
    root = next((parent.parent for parent in parents if parent.name == "configs"), None)
    # Configuration files import each other as `configs.…`; the code of a paper lies beside them.
    for folder in map(str, (root,) if root else (*parents[1:2], parents[0])):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    if (shipped := str(configs_root())) not in sys.path:
        sys.path.append(shipped)
    with running(f"{option}={path}"):
        exec(compile(file.read_bytes(), str(file), "exec"), vars(module))
    return module


@contextmanager
def running(file: str) -> Iterator[None]:
    """Turns every error of a user's file into a ConfigError that begins with `file`."""
    try:
        yield
    except UserError as error:
        raise ConfigError(f"{file}: {error}") from error
    except Exception as error:
        raise ConfigError(f"{file}: cannot be run ({type(error).__name__}: {error})") from error


def resolved(
    path: str,
    overrides: Mapping[str, Any],
    warn: Callable[[str], None] | None = None,
    protocol: str | None = None,
    *,
    typed: Collection[str] | None = None,
    trust_code: bool = False,
) -> Config:
    """The validated configuration in a file with overrides; see `load_config` and `resolve`.

    `typed` are the overrides that the command line contains; None for all.
    """
    values = load_config(path, overrides, protocol, trust_code=trust_code)
    return resolve(values, overrides if typed is None else typed, warn)


def load_config(
    path: str,
    overrides: Mapping[str, Any],
    protocol: str | None = None,
    *,
    trust_code: bool = False,
) -> dict[str, Any]:
    """The values in a file, nested, with overrides; imports the modules that they name by path.

    Args:
      path: a Python file, FILE:VARIANT, or the `config.json` of a run.
      overrides: by dotted key. Another network or loss starts from its defaults.
      protocol: "paper" applies the file's `PAPER_PROTOCOL`, or AUTHORS if it has none.
      trust_code: also imports the modules that a `config.json` names.
    """
    stored = path.endswith(".json")
    values = _stored_values(path, protocol) if stored else _values_of_file(path, protocol)
    batch_size = flatten(values).get("data.batch_size")
    _choose_network(values, overrides)
    override(values, overrides, overrides if stored and not trust_code else None)
    _replace_length(values, overrides)
    _keep_rates(values, batch_size)
    _check_frozen_network(values, overrides)
    if not same_experiment(values, overrides):
        values["paper"] = {}
    if stored and not trust_code:
        modules.check_stored(values)
    return values


def _values_of_file(path: str, protocol: str | None) -> dict[str, Any]:
    module, made = run_variant("--config", path, "get_config")
    stated = getattr(module, "PAPER_PROTOCOL", None)
    with running(f"--config={path}"):
        values: dict[str, Any] = ConfigDict(made).to_dict()
        json.dumps(values, sort_keys=True)  # raises for values that no file can store
        if protocol == "paper":
            _apply_protocol(values, AUTHORS if stated is None else stated)
            if stated is not None:
                values["name"] += "-paper"
    return values


def _stored_values(path: str, protocol: str | None) -> dict[str, Any]:
    """The values in the `config.json` of a run, or in a JSON file with a configuration alone."""
    remedy = "give the config.json of a run"
    content = read_json(find_file("--config", path), dict[str, Any], remedy, ConfigError)
    found = content.get("config", content)
    if not isinstance(found, dict) or "train" not in found:
        raise ConfigError(f"--config={path}: contains no configuration; {remedy}")
    if protocol == "clean" and flatten(found).get("evaluation.protocol") == "paper":
        problem = "comes from a run under the paper protocol; give its Python file"
        raise ConfigError(f"--protocol=clean: {path} {problem}")
    if protocol == "paper":
        with running(f"--config={path}"):
            _apply_protocol(found, AUTHORS)
    return found


def _apply_protocol(values: dict[str, Any], stated: Mapping[str, Any]) -> None:
    for key, value in {**PRECISION, **stated}.items():
        apply_override(values, key, value)


def _choose_network(values: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Gives another network the defaults of its options."""
    name = overrides.get("backbone.name")
    if name is not None and name != flatten(values).get("backbone.name"):
        modules.import_code({"backbone": {"name": name}})
        values["backbone"] = asdict(modules.plugin_module("backbone", name).Config())


def _replace_length(values: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """A length in one unit replaces the file's in the other."""
    for given, other in (("steps", "epochs"), ("epochs", "steps")):
        typed = f"train.{given}" in overrides and f"train.{other}" not in overrides
        if typed and values["train"][given]:
            values["train"][other] = 0


def _keep_rates(values: dict[str, Any], batch_size: Any) -> None:
    """States the file's batch size, for which its learning rates are given, where rates scale."""
    flat = flatten(values)
    scaled = flat.get("train.scale_rates", "none") != "none"
    if scaled and flat.get("train.rates_for_batch") == 0:
        values["train"]["rates_for_batch"] = batch_size


def _check_frozen_network(values: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    flat = flatten(values)
    weights = flat.get("init_from") or flat.get("backbone.pretrained") != "none"
    if "backbone.name" in overrides and flat.get("train.groups.backbone.freeze") and not weights:
        problem = "is frozen, so it needs weights; give"
        remedy = "--config.backbone.pretrained or --config.init_from"
        raise ConfigError(f"backbone.name={flat['backbone.name']!r}: {problem} {remedy}")


def run_variant(option: str, path: str, function: str) -> tuple[ModuleType, Any]:
    """Executes FILE or FILE:VARIANT; the module, and what its function returns for the variant."""
    name, colon, variant = path.partition(":")
    module = run_file(option, name)
    variants = getattr(module, "VARIANTS", ())
    if not hasattr(module, function):
        raise ConfigError(f"{option}={path}: has no {function}(), so it cannot be run itself")
    if colon and variant not in variants:
        near = "".join(f"did you mean {m}? " for m in get_close_matches(variant, variants, 1))
        remedy = f"{near}known: {', '.join(variants)}"
        remedy = remedy if variants else f"this file has none; give {option}={name}"
        raise ConfigError(f"{option}={path}: there is no variant {variant!r}; {remedy}")
    with running(f"{option}={path}"):
        return module, getattr(module, function)(*[variant] * bool(colon))


def override(
    values: dict[str, Any], overrides: Mapping[str, Any], trusted: Collection[str] | None = None
) -> None:
    """Sets dotted keys, and gives each section the options of the functions that it names.

    New options take their defaults, and those of functions that it no longer names are removed. The
    modules that `trusted` keys name, or all, are imported.
    """

    def kinds_of(section: str) -> dict[str, Any]:
        with suppress(ConfigError):  # a stored configuration may name code that is not trusted
            options = dataclasses.fields(modules.section_type(section, values))
            kinds = {option.name: option.default_factory for option in options}
            return {key: kind for key, kind in kinds.items() if is_dataclass(kind)}
        return {}

    sections = [name for name in modules.SECTIONS if isinstance(values.get(name), dict)]
    before = {name: kinds_of(name) for name in sections}
    functions = {key: value for key, value in overrides.items() if key.count(".") < 2}
    for key, value in functions.items():
        apply_override(values, key, value)
    modules.import_code(values, trusted)
    for name in sections:
        present, after = values[name], kinds_of(name)
        for key in before[name].keys() - after.keys() if after else ():
            present.pop(key, None)
        for key, kind in after.items():
            present[key] = {**asdict(kind()), **present.get(key, {})}
    for key in overrides.keys() - functions.keys():
        apply_override(values, key, overrides[key])


def apply_override(values: dict[str, Any], key: str, value: Any) -> None:
    """Sets a dotted key; text is parsed as the type of the present value.

    A mapping or a dataclass may be a new section. A new path in `train.groups`, such as
    backbone/layer1_*, starts as a copy of its group.
    """
    is_section = is_dataclass(value) or isinstance(value, Mapping)
    *sections, last = key.split(".")
    section: Any = values
    for part in (*sections, last):
        known = section if isinstance(section, dict) else {}
        group = known.get(part.partition("/")[0]) if sections[:2] == ["train", "groups"] else None
        if part not in known and "/" in part and isinstance(group, dict):
            known[part] = dict(group)
        if part not in known and not (part is last and is_section):
            raise ConfigError(f"{key}: there is no such key; {suggest(key, flatten(values))}")
        holder, section = section, section.get(part)
    holder[last] = _parsed(key, value, section) if isinstance(value, str) else _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _parsed(key: str, text: str, old: Any) -> Any:
    try:
        if isinstance(old, bool):
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if type(old) in (int, float, str):
            return type(old)(text)
        if isinstance(old, tuple | list):
            words = text.split(",")
            # Names, also import paths.
            named = all(part.isidentifier() for word in words for part in word.split("."))
            value = words if named else ast.literal_eval(text)
            return tuple(value) if isinstance(value, tuple | list) else (value,)
    except (KeyError, ValueError, SyntaxError, TypeError):
        wanted = WANTED.get(type(old), "a list, separated by commas")
        raise ConfigError(f"{key}={text}: must be {wanted}") from None
    known = ", ".join(sorted(old or {}))
    raise ConfigError(f"{key}: is a section; set the keys in it one by one: {known}")
