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
# The paper protocol of a file without PAPER_PROTOCOL.
AUTHORS = {"train.select": "test", "evaluation.protocol": "paper"}
EXPECTED = {bool: "true or false", int: "a whole number", float: "a number"}
PRECISION = {"train.precision": "float32"}  # as all authors, whose GPUs had no lower precision


def configs_root() -> Path:
    """The directory that holds `configs`: inside the installed package, or the checkout."""
    package = Path(__file__).parents[1]
    return next(
        root for root in (package / "shipped", package.parent) if (root / "configs").is_dir()
    )


def known_files(option: str) -> dict[str, Path]:
    """The shipped files that an option can name: configurations or studies.

    The studies of a paper have the name of its folder.
    """
    root = configs_root() / "configs"
    if option == "--study":
        papers = {file.parent.name: file for file in root.glob("*/studies.py")}
        return papers | {file.stem: file for file in root.glob("studies/*.py")}
    return {file.stem: file for file in root.glob("*_*.py")}  # DATA_METHOD.py; others are imported


def find_file(option: str, path: str) -> Path:
    """A user's file, or a shipped file such as "configs/cars_baseline.py" or "cars_baseline"."""
    file = expand_path(option, path)
    if file.is_file():
        return file
    root, shipped = configs_root(), known_files(option)
    remedy = f"give a Python file or one of the shipped files: {', '.join(sorted(shipped))}"
    shipped |= {str(file.relative_to(root).with_suffix("")): file for file in shipped.values()}
    name = path.removesuffix(".py")
    if name in shipped:
        return shipped[name]
    if matches := get_close_matches(name, shipped, 1):
        remedy = f"did you mean {shipped[matches[0]].relative_to(root)}?"
    raise ConfigError(f"{option}={path}: no such file; {remedy}")


def run_file(option: str, path: str) -> ModuleType:
    """Executes the file that `find_file` returns; ConfigError for an error in it."""
    file = find_file(option, path)
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    parents = [*file.resolve().parents]
    root = next((parent.parent for parent in parents if parent.name == "configs"), None)
    # Configuration files import each other as `configs.…`; a paper's code is in the same folder.
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
    """The validated configuration of a file with overrides; see `load_config` and `resolve`.

    `typed` are the overrides from the command line; None: all.
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
    """The nested values of a file with overrides; imports the modules that they name by path.

    Args:
      path: a Python file, FILE:VARIANT, or the `config.json` of a run.
      overrides: by dotted key. A different network or loss starts from its defaults.
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
    module, content = run_variant("--config", path, "get_config")
    protocol_values = getattr(module, "PAPER_PROTOCOL", None)
    with running(f"--config={path}"):
        values: dict[str, Any] = ConfigDict(content).to_dict()
        json.dumps(values, sort_keys=True)  # raises for values that cannot be stored
        if protocol == "paper":
            _apply_protocol(values, AUTHORS if protocol_values is None else protocol_values)
            if protocol_values is not None:
                values["name"] += "-paper"
    return values


def _stored_values(path: str, protocol: str | None) -> dict[str, Any]:
    """The values in the `config.json` of a run, or in a JSON file with only a configuration."""
    remedy = "give the config.json of a run"
    content = read_json(find_file("--config", path), dict[str, Any], remedy, ConfigError)
    values = content.get("config", content)
    if not isinstance(values, dict) or "train" not in values:
        raise ConfigError(f"--config={path}: contains no configuration; {remedy}")
    if protocol == "clean" and flatten(values).get("evaluation.protocol") == "paper":
        problem = "belongs to a run with the paper protocol; give its Python file"
        raise ConfigError(f"--protocol=clean: {path} {problem}")
    if protocol == "paper":
        with running(f"--config={path}"):
            _apply_protocol(values, AUTHORS)
    return values


def _apply_protocol(values: dict[str, Any], protocol_values: Mapping[str, Any]) -> None:
    for key, value in {**PRECISION, **protocol_values}.items():
        apply_override(values, key, value)


def _choose_network(values: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """If the network changes, gives it the defaults of its options."""
    name = overrides.get("backbone.name")
    if name is not None and name != flatten(values).get("backbone.name"):
        modules.import_code({"backbone": {"name": name}})
        values["backbone"] = asdict(modules.plugin_module("backbone", name).Config())


def _replace_length(values: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    """Lets an override in steps or epochs replace the file's length in the other unit."""
    for unit, other in (("steps", "epochs"), ("epochs", "steps")):
        replaced = f"train.{unit}" in overrides and f"train.{other}" not in overrides
        if replaced and values["train"][unit]:
            values["train"][other] = 0


def _keep_rates(values: dict[str, Any], batch_size: Any) -> None:
    """Records the file's batch size, to which its learning rates refer, if rates are scaled."""
    flat = flatten(values)
    scaled = flat.get("train.scale_rates", "none") != "none"
    if scaled and flat.get("train.rates_for_batch") == 0:
        values["train"]["rates_for_batch"] = batch_size


def _check_frozen_network(values: dict[str, Any], overrides: Mapping[str, Any]) -> None:
    flat = flatten(values)
    weights = flat.get("init_from") or flat.get("backbone.pretrained") != "none"
    if "backbone.name" in overrides and flat.get("train.groups.backbone.freeze") and not weights:
        problem = "the backbone is frozen, so it needs weights; give"
        remedy = "--config.backbone.pretrained or --config.init_from"
        raise ConfigError(f"backbone.name={flat['backbone.name']!r}: {problem} {remedy}")


def run_variant(option: str, path: str, function: str) -> tuple[ModuleType, Any]:
    """Executes FILE or FILE:VARIANT; returns the module and its function's value."""
    name, colon, variant = path.partition(":")
    module = run_file(option, name)
    variants = getattr(module, "VARIANTS", ())
    if not hasattr(module, function):
        raise ConfigError(
            f"{option}={path}: does not define {function}(), so it cannot be run directly"
        )
    if colon and variant not in variants:
        near = "".join(f"did you mean {m}? " for m in get_close_matches(variant, variants, 1))
        remedy = f"{near}known: {', '.join(variants)}"
        remedy = remedy if variants else f"the file has no variants; give {option}={name}"
        raise ConfigError(f"{option}={path}: unknown variant {variant!r}; {remedy}")
    with running(f"{option}={path}"):
        return module, getattr(module, function)(*[variant] * bool(colon))


def override(
    values: dict[str, Any], overrides: Mapping[str, Any], trusted: Collection[str] | None = None
) -> None:
    """Sets dotted keys, and gives each section the options of the functions that it names.

    New options take their defaults; options of functions no longer named are removed. Imports the
    modules that the `trusted` keys name; None: all.
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
    """Sets a dotted key; text is parsed as the type of the current value.

    A mapping or a dataclass may be a new section. A new path in `train.groups`, such as
    backbone/layer1_*, starts as a copy of its group.
    """
    is_section = is_dataclass(value) or isinstance(value, Mapping)
    *sections, last = key.split(".")
    section: Any = values
    for part in (*sections, last):
        options = section if isinstance(section, dict) else {}
        group = options.get(part.partition("/")[0]) if sections[:2] == ["train", "groups"] else None
        if part not in options and "/" in part and isinstance(group, dict):
            options[part] = dict(group)
        if part not in options and not (part is last and is_section):
            raise ConfigError(f"{key}: unknown key; {suggest(key, flatten(values))}")
        parent, section = section, section.get(part)
    parent[last] = _parsed(key, value, section) if isinstance(value, str) else _plain(value)


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
            # Names or import paths.
            are_names = all(part.isidentifier() for word in words for part in word.split("."))
            value = words if are_names else ast.literal_eval(text)
            return tuple(value) if isinstance(value, tuple | list) else (value,)
    except (KeyError, ValueError, SyntaxError, TypeError):
        expected = EXPECTED.get(type(old), "a list, separated by commas")
        raise ConfigError(f"{key}={text}: must be {expected}") from None
    options = ", ".join(sorted(old or {}))
    raise ConfigError(f"{key}: is a section; set its keys individually: {options}")
