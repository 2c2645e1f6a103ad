"""Configuration files: found, executed, and overridden by keys of the command line."""

import ast
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, is_dataclass
from difflib import get_close_matches
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from dml_jax.config import modules
from dml_jax.config.fields import flatten
from dml_jax.config.identity import SAME_EXPERIMENT, within
from dml_jax.config.resolve import Config, misleading, resolve, upgraded
from dml_jax.errors import ConfigError, UserError, suggest
from dml_jax.files import expand_path, read_json

if TYPE_CHECKING:
    from ml_collections import ConfigDict

PROTOCOLS = ("clean", "paper")
# The authors' protocol for a file that does not state one as PAPER_PROTOCOL.
AUTHORS = {"train.select": "test", "evaluation.protocol": "paper"}


def configs_root() -> Path:
    """The directory that holds `configs`: inside the installed package, or the checkout."""
    package = Path(__file__).parents[1]
    return next(root for root in (package / "shipped", package.parent) if (root / "configs").is_dir())


def find_file(option: str, path: str) -> Path:
    """A configuration (with the option "--study", a study): the user's own file, or else one that the package brings.

    The path of the latter is e.g. "configs/cars_hist.py" or "cars_hist", "configs/studies/hist_alpha.py" or
    "hist_alpha", without a variant. Raises ConfigError if there is no such file.
    """
    file = expand_path(option, path)
    if file.is_file():
        return file
    folder = "configs/studies" if option == "--study" else "configs"
    known = {file.stem: file for file in (configs_root() / folder).glob("*.py")}
    name = path.removeprefix(f"{folder}/").removesuffix(".py")
    if name in known:
        return known[name]
    near = [f"; did you mean {folder}/{match}.py?" for match in get_close_matches(name, known, 1)]
    raise ConfigError(f"{option}={path}: there is no such file{''.join(near)}")


def run_file(option: str, path: str) -> ModuleType:
    """Executes a file, see `find_file`; raises ConfigError if there is no such file, or an error in it."""
    file = find_file(option, path)
    if file.suffix != ".py":
        raise ConfigError(f"{option}={path}: is not a Python file")
    loader = _SourceLoader(file.stem, str(file))
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    parents = [*file.resolve().parents]
    root = next((parent.parent for parent in parents if parent.name == "configs"), None)
    # Configuration files import each other as `configs.…`, and the code of a paper lies beside them.
    for folder in map(str, (root,) if root else (*parents[1:2], parents[0])):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    if (shipped := str(configs_root())) not in sys.path:  # and may import those of the package
        sys.path.append(shipped)
    with running(f"{option}={path}"):
        loader.exec_module(module)
    return module


class _SourceLoader(SourceFileLoader):
    """Always reads the source: Python recognises a compiled file by size and second, which two versions may share."""

    def get_code(self, fullname: str) -> CodeType:
        return self.source_to_code(self.get_data(self.path), self.path)


@contextmanager
def running(file: str) -> Iterator[None]:
    """Within this context, every error of a user's file is a ConfigError that names it; `file`: option and value."""
    try:
        yield
    except UserError as error:
        raise ConfigError(f"{file}: {error}") from error
    except Exception as error:
        raise ConfigError(f"{file}: cannot be run ({type(error).__name__}: {error})") from error


def _stored_config(path: str) -> tuple[dict[str, Any], list[str]]:
    """The configuration in a JSON file, the `config.json` of a run or the configuration alone, and the "given" keys."""
    file = expand_path("--config", path)
    if not file.is_file():
        raise ConfigError(f"--config={path}: there is no such file")
    content = read_json(file, dict[str, Any], "give the config.json of a run", ConfigError)
    values = content.get("config", content)
    if not isinstance(values, dict) or not isinstance(values.get("train"), dict):
        raise ConfigError(f"--config={path}: holds no configuration; give the config.json of a run")
    given = content.get("given")
    return upgraded(values), [str(key) for key in given] if isinstance(given, list) else []


def resolved(
    path: str,
    overrides: Mapping[str, Any],
    warn: Callable[[str], None] | None = None,
    protocol: str | None = None,
    *,
    trust_code: bool = False,
) -> tuple[Config, frozenset[str]]:
    """The configuration in a file with overrides, and the keys that the user gave, see `needs.report`.

    These are the overrides and the options that the file names, as opposed to those of a recipe that it imports, unless
    it is an override that makes them pointless. The `config.json` of a run only has those of its study.

    Arguments and errors are those of `load_config` and `config.resolve`; `warn` is called with a sentence about each
    value that has no effect or not the one that is expected.
    """
    values = load_config(path, overrides, protocol, trust_code=trust_code)
    if path.endswith(".json"):
        given = {*overrides, *_stored_config(path)[1]}
        return resolve(values, given, warn), frozenset(given)
    source = find_file("--config", path.partition(":")[0]).read_text(encoding="utf-8")
    words = set(re.findall(r"\w+", source))
    named = {key for key in flatten(values) if key.rpartition(".")[2] in words}
    given = {*overrides, *(named & misleading(load_config(path, {}, protocol)))}
    config = resolve(values, given, warn)
    shortened = not {"train.steps", "train.epochs"}.isdisjoint(overrides)
    return config, frozenset(given if shortened else given | named)


def load_config(
    path: str, overrides: Mapping[str, Any], protocol: str | None = None, *, trust_code: bool = False
) -> dict[str, Any]:
    """The configuration in a file as a nested dict, with overrides applied.

    What the user's own file or the overrides name by an import path is imported.

    Args:
      path: the file; `FILE:variant` calls its `get_config(variant)`; `config.json` of a run is a configuration, too.
      overrides: by dotted key, see `apply_override`; another `backbone.name` starts from the defaults of that network.
      protocol: "paper" applies the overrides `PAPER_PROTOCOL` of the file, or AUTHORS if it has none. None and "clean"
        leave the file as it is, but a stored run of the paper protocol cannot be "clean".
      trust_code: also imports what the `config.json` of a run names by an import path.

    Raises:
      ConfigError: no such file, variant or key, or a value of another type; or see `import_code`.
    """
    if path.endswith(".json"):
        values, _ = _stored_config(path)
        if protocol == "clean" and flatten(values).get("evaluation.protocol") == "paper":
            raise ConfigError(f"--protocol=clean: {path} is of a run under the paper protocol; give its Python file")
        overrides = {**AUTHORS, **overrides} if protocol == "paper" else overrides
    else:
        values = _from_python(path, protocol)
    network = overrides.get("backbone.name")
    if network is not None and network != flatten(values).get("backbone.name"):
        modules.import_code({"backbone": {"name": network}})
        values["backbone"] = asdict(modules.module("backbone", network).Config())
    for key, value in overrides.items():
        apply_override(values, key, value)
    frozen = values["train"]["groups"].get("backbone", {}).get("freeze")
    if network is not None and frozen and values["backbone"]["pretrained"] == "none" and not values["init_from"]:
        raise ConfigError(
            f"backbone.name={network!r}: is frozen, so it needs weights; give --config.backbone.pretrained "
            "or --config.init_from"
        )
    for own, other in (("steps", "epochs"), ("epochs", "steps")):  # a new length replaces the one in the file
        if f"train.{own}" in overrides and f"train.{other}" not in overrides and values["train"][own]:
            values["train"][other] = 0
    if not all(within(key, SAME_EXPERIMENT) for key in overrides):
        values["paper"] = {}  # it is not the experiment of the paper any more
    modules.import_code(values, overrides if path.endswith(".json") and not trust_code else None)
    return values


def _from_python(path: str, protocol: str | None) -> dict[str, Any]:
    name, colon, variant = path.partition(":")
    module = run_file("--config", name)
    if not hasattr(module, "get_config"):
        raise ConfigError(f"--config={path}: has no get_config(), so it is not a configuration; other files import it")
    variants = getattr(module, "VARIANTS", ())
    if colon and variant not in variants:
        without = "-".join(part for part in variant.split("-") if part != "paper")
        if without != variant and (not without or without in variants):
            instead = f"--config={':'.join(filter(None, (name, without)))} --protocol=paper"
            raise ConfigError(f"--config={path}: the authors' protocol is an option; give {instead}")
        known = suggest(variant, variants) if variants else "this configuration has none"
        raise ConfigError(f"--config={path}: there is no variant {variant!r}; {known}")
    with running(f"--config={path}"):
        config: ConfigDict = module.get_config(variant) if colon else module.get_config()
        values: dict[str, Any] = config.to_dict()
        if protocol == "paper":
            stated = getattr(module, "PAPER_PROTOCOL", None)
            for key, value in (AUTHORS if stated is None else stated).items():
                apply_override(values, key, value)
            if stated is not None:
                values["name"] += "-paper"
    return values


def apply_override(values: dict[str, Any], key: str, value: Any) -> None:
    """Sets the dotted `key` of a nested dict.

    Text is parsed as the type of the present value. Any other value replaces it, and a mapping or a dataclass may also
    be added as a new section. A new path in `train.groups`, such as backbone/layer1_*, starts as a copy of the group
    that it begins with.

    Raises:
      ConfigError: no such key, or text that is not of the type.
    """
    is_section = is_dataclass(value) or isinstance(value, Mapping)
    *sections, last = key.split(".")
    section: Any = values
    for part in (*sections, last):
        if not isinstance(section, dict):
            raise ConfigError(f"{key}: {part} is below a value, not in a section")
        group = section.get(part.partition("/")[0]) if sections[:2] == ["train", "groups"] else None
        if part not in section and "/" in part and isinstance(group, dict):
            section[part] = dict(group)
        if part not in section and not (part is last and is_section):
            raise ConfigError(f"{key}: there is no such key; {suggest(key, flatten(values))}")
        holder, section = section, section.get(part)
    holder[last] = _parsed(key, value, section) if isinstance(value, str) else _plain(value)


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else value


def _parsed(key: str, text: str, old: Any) -> Any:
    kinds: dict[type, Callable[[str], Any]] = {int: int, float: float, str: str}
    try:
        if isinstance(old, bool):
            return {"true": True, "1": True, "false": False, "0": False}[text.lower()]
        if type(old) in kinds:
            return kinds[type(old)](text)
        if isinstance(old, tuple | list):
            words = text.split(",")
            value = words if all(map(str.isidentifier, words)) else ast.literal_eval(text)
            return tuple(value) if isinstance(value, tuple | list) else (value,)
    except (KeyError, ValueError, SyntaxError, TypeError):
        wanted = "true or false" if isinstance(old, bool) else f"{type(old).__name__}, e.g. {old!r}"
        raise ConfigError(f"{key}={text}: must be {wanted}") from None
    raise ConfigError(f"{key}: is a section; set the keys in it one by one: {', '.join(sorted(old or {}))}")
