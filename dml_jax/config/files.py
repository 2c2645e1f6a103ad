"""Configuration files: found, executed, and overridden by keys of the command line."""

import ast
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
PRECISION = {"train.precision": "float32"}  # of every author: their GPUs had nothing less


def configs_root() -> Path:
    """The directory that holds `configs`: inside the installed package, or the checkout."""
    package = Path(__file__).parents[1]
    return next(
        root for root in (package / "shipped", package.parent) if (root / "configs").is_dir()
    )


def known_files(option: str) -> dict[str, Path]:
    """The files of the package that an option can name: configurations; the studies and searches of
    a paper, in its folder, and those over several papers; or, for `--claims`, the claims of a
    paper."""
    root = configs_root() / "configs"
    if option == "--study":
        searches = {f"{file.parent.name}/search": file for file in root.glob("*/search.py")}
        papers = {file.parent.name: file for file in root.glob("*/studies.py")}
        return papers | searches | {file.stem: file for file in root.glob("studies/*.py")}
    if option == "--claims":
        return {file.parent.name: file for file in sorted(root.glob("*/claims.py"))}
    return {file.stem: file for file in root.glob("*.py")}


def find_file(option: str, path: str) -> Path:
    """A configuration or, with `option="--study"`, a study: the user's own file, or one of the
    package.

    `path` is without a variant, and for the package e.g. "configs/cars_hist.py" or "cars_hist".
    """
    file = expand_path(option, path)
    if file.is_file():
        return file
    known, shown = known_files(option), f"{configs_root()}/"
    known |= {str(file).removeprefix(shown).removesuffix(".py"): file for file in known.values()}
    name = path.removesuffix(".py")
    if name in known:
        return known[name]
    near = [
        f"did you mean {str(known[m]).removeprefix(shown)}?"
        for m in get_close_matches(name, known, 1)
    ]
    names = ", ".join(sorted(known_files(option)))
    remedy = near[0] if near else f"give your own Python file, or one of the package: {names}"
    raise ConfigError(f"{option}={path}: there is no such file; {remedy}")


def run_file(option: str, path: str) -> ModuleType:
    """Executes the file that `find_file` returns; raises ConfigError for an error in it."""
    file = find_file(option, path)
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    parents = [*file.resolve().parents]
    root = next((parent.parent for parent in parents if parent.name == "configs"), None)
    # Configuration files import each other as `configs.…`, and the code of a paper lies beside
    # them.
    for folder in map(str, (root,) if root else (*parents[1:2], parents[0])):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    if (
        shipped := str(configs_root())
    ) not in sys.path:  # and may import the package's configurations
        sys.path.append(shipped)
    with running(f"{option}={path}"):
        exec(compile(file.read_bytes(), str(file), "exec"), vars(module))
    return module


@contextmanager
def running(file: str) -> Iterator[None]:
    """Turns every error of a user's file into a ConfigError that names it; `file`: option and
    value."""
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
    """The validated configuration in a file with overrides; arguments and errors as of
    `load_config` and `resolve`.

    `typed` are the overrides of the command line; None for all.
    """
    values = load_config(path, overrides, protocol, trust_code=trust_code)
    return resolve(values, overrides if typed is None else typed, warn)


def load_config(
    path: str,
    overrides: Mapping[str, Any],
    protocol: str | None = None,
    *,
    trust_code: bool = False,
) -> ConfigDict:
    """The configuration in a file, with overrides applied and the modules imported that it names by
    import paths.

    Args:
      path: a Python file, FILE:VARIANT, or the `config.json` of a run.
      overrides: by dotted key. Another network or loss starts from its defaults.
      protocol: "paper" applies the overrides `PAPER_PROTOCOL` of the file, or AUTHORS if it has
        none.
      trust_code: also imports the modules that a `config.json` names.
    """
    stored = path.endswith(".json")
    if stored:
        values, stated = _stored(path, protocol), None
    else:
        module, made = run_variant("--config", path, "get_config")
        with running(f"--config={path}"):
            values, stated = ConfigDict(made), getattr(module, "PAPER_PROTOCOL", None)
    if protocol == "paper":
        with running(f"--config={path}"):
            for key, value in {**PRECISION, **(AUTHORS if stated is None else stated)}.items():
                apply_override(values, key, value)
        if stated is not None:
            values.name += "-paper"
    own_batch_size = flatten(values).get("data.batch_size")
    network = overrides.get("backbone.name")
    if network is not None and network != flatten(values).get("backbone.name"):
        modules.import_code({"backbone": {"name": network}})
        values.backbone = asdict(
            modules.module("backbone", network).Config()
        )  # the defaults of another network
    _choose_options(values, overrides)
    for key, value in overrides.items():
        apply_override(values, key, value)
    flat = flatten(values)
    for section in ("head", "train"):
        if (
            flat.get(f"{section}.scale_rates", "none") != "none"
            and flat.get(f"{section}.rates_for_batch") == 0
        ):
            values[section].rates_for_batch = own_batch_size
    weights = flat.get("init_from") or flat.get("backbone.pretrained") != "none"
    if "backbone.name" in overrides and flat.get("train.groups.backbone.freeze") and not weights:
        raise ConfigError(
            f"backbone.name={values.backbone.name!r}: is frozen, so it needs weights; give "
            "--config.backbone.pretrained or --config.init_from"
        )
    for own, other in (
        ("steps", "epochs"),
        ("epochs", "steps"),
    ):  # a new length replaces the one in the file
        if f"train.{own}" in overrides and f"train.{other}" not in overrides and values.train[own]:
            values.train[other] = 0
    if not same_experiment(values, overrides):
        with values.ignore_type():
            values.paper = {}  # it is not the experiment of the paper any more
    modules.import_code(values, overrides if stored and not trust_code else None)
    return values


def _stored(path: str, protocol: str | None) -> ConfigDict:
    """The configuration in a JSON file: the `config.json` of a run, or the configuration alone."""
    content = read_json(
        find_file("--config", path), dict[str, Any], "give the config.json of a run", ConfigError
    )
    values = content.get("config", content)
    if not isinstance(values, dict) or "train" not in values:
        raise ConfigError(f"--config={path}: holds no configuration; give the config.json of a run")
    if protocol == "clean" and flatten(values).get("evaluation.protocol") == "paper":
        raise ConfigError(
            f"--protocol=clean: {path} is of a run under the paper protocol; give its Python file"
        )
    with running(f"--config={path}"):  # whatever the keys are called
        return ConfigDict(values)


def run_variant(option: str, path: str, function: str) -> tuple[ModuleType, Any]:
    """Executes FILE or FILE:VARIANT; returns the module, and the result of its function for the
    variant."""
    name, colon, variant = path.partition(":")
    module = run_file(option, name)
    variants = getattr(module, "VARIANTS", ())
    if not hasattr(module, function):
        raise ConfigError(f"{option}={path}: has no {function}(), so it cannot be run itself")
    if colon and variant not in variants:
        near = [f"did you mean {match}? " for match in get_close_matches(variant, variants, 1)]
        listed = f"{''.join(near)}known: {', '.join(variants)}"
        known = listed if variants else f"this file has none; give {option}={name}"
        raise ConfigError(f"{option}={path}: there is no variant {variant!r}; {known}")
    with running(f"{option}={path}"):
        return module, getattr(module, function)(*[variant] * bool(colon))


def _choose_options(values: ConfigDict, overrides: Mapping[str, Any]) -> None:
    """Gives a method whose options depend on values, such as its loss, the options of the values
    that overrides choose.

    New options take their defaults, and those that it does not have any more are removed.
    """
    chosen = {
        key.removeprefix("method."): value
        for key, value in overrides.items()
        if key.startswith("method.")
    }
    name, present = flatten(values).get("method.name"), values.get("method")
    if not chosen or "." in str(name) or not isinstance(present, ConfigDict):
        return
    method, before = modules.module("method", name), None
    if hasattr(method, "config_type"):
        modules.import_code({"method": {"name": name, **chosen}})
        with suppress(ConfigError):  # of a stored configuration, whose code is not trusted
            before = method.config_type(present)
        if (kind := method.config_type({**present, **chosen})) is not before:
            defaults = asdict(kind())
            values.method = {
                **defaults,
                **{key: present[key] for key in defaults if key in {*present} - {*chosen}},
            }


def apply_override(values: ConfigDict, key: str, value: Any) -> None:
    """Sets a dotted key.

    Text is parsed as the type of the present value. Any other value replaces it; a mapping or a
    dataclass may also be a new section. A new path in `train.groups`, such as backbone/layer1_*,
    starts as a copy of its group.
    """
    is_section = is_dataclass(value) or isinstance(value, Mapping)
    *sections, last = key.split(".")
    section: Any = values
    for part in (*sections, last):
        known = section if isinstance(section, ConfigDict) else {}
        group = known.get(part.partition("/")[0]) if sections[:2] == ["train", "groups"] else None
        if part not in known and "/" in part and isinstance(group, ConfigDict):
            section[part] = group.to_dict()
        if part not in known and not (part is last and is_section):
            raise ConfigError(f"{key}: there is no such key; {suggest(key, flatten(values))}")
        holder, section = section, section.get(part)
    with holder.ignore_type():
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
    raise ConfigError(
        f"{key}: is a section; set the keys in it one by one: {', '.join(sorted(old or {}))}"
    )
