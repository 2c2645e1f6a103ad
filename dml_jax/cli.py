"""Command lines: options, a configuration file and overrides of its keys; invalid input ends in one sentence."""

import argparse
import ast
import errno
import importlib.util
import io
import sys
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any, NoReturn

from dml_jax.errors import ConfigError, UserError, printable, suggest
from dml_jax.files import UNWRITABLE, expand_path, read_json

if TYPE_CHECKING:
    from ml_collections import ConfigDict

# File-system errors that the user can fix: a full or failing disk, missing permissions, something else of that name.
FIXABLE = UNWRITABLE | {
    *(errno.EACCES, errno.EPERM, errno.EIO, errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENOTEMPTY, errno.ELOOP),
    errno.ENAMETOOLONG,
}


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises ConfigError and understands `--config.section.key=value`."""

    def __init__(self, description: str | None):
        spec = None if sys.argv[0].startswith("dml-jax ") else getattr(sys.modules["__main__"], "__spec__", None)
        super().__init__(
            prog=f"python -m {spec.name.removesuffix('.__main__')}" if spec else None,
            description=description, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False,
        )  # fmt: skip

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))

    def read(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, dict[str, str]]:
        """(options, overrides by dotted key) from the arguments that follow the name of the program.

        Raises:
          ConfigError: an unknown option or an unexpected argument.
        """
        plain = [a for a in arguments if not a.startswith("--config.")]
        overrides = {}
        for argument in arguments:
            if argument.startswith("--config."):
                key, equals, value = argument.removeprefix("--config.").partition("=")
                if not equals:
                    raise ConfigError(f"{argument}: give the value after an equals sign")
                overrides[key] = value
        options, rest = self.parse_known_args(plain)
        for argument in rest:
            if not argument.startswith("-"):
                raise ConfigError(f"{argument}: unexpected argument; options are written --name=value")
            known = [name for action in self._actions for name in action.option_strings]
            raise ConfigError(f"{argument}: there is no such option; {suggest(argument.split('=')[0], known)}")
        return options, overrides

    def read_plain(self, arguments: Sequence[str], command: str) -> argparse.Namespace:
        """The options of a command, e.g. "dml_jax.report", that has no configuration.

        Raises:
          ConfigError: an unknown option, an unexpected argument, or an override.
        """
        options, overrides = self.read(arguments)
        if overrides:
            raise ConfigError(f"--config.{next(iter(overrides))}: {command} has no configuration; remove it")
        return options


def check_process(processes: int, process: int) -> None:
    """Raises ConfigError unless `--process` is the index of one of `--processes`."""
    if processes < 1:
        raise ConfigError(f"--processes={processes}: must be positive")
    if not 0 <= process < processes:
        raise ConfigError(f"--process={process}: must be one of 0 to {processes - 1}, as --processes={processes}")


def file_to_write(option: str, path: str) -> Path:
    """The file that an option names.

    Raises:
      ConfigError: it is a directory, or its directory does not exist.
    """
    file = expand_path(option, path)
    if file.is_dir():
        raise ConfigError(f"{option}={path}: is a directory; give a file")
    if not file.parent.is_dir():
        raise ConfigError(f"{option}={path}: there is no directory {file.parent}")
    return file


def choices(option: str, text: str, known: Collection[str]) -> tuple[str, ...]:
    """The names, separated by commas, that an option gives, without duplicates.

    Raises:
      ConfigError: one of them is not known.
    """
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in known:
            raise ConfigError(f"{option}={text}: there is no {name!r}; {suggest(name, known)}")
    return names


def check_installed(option: str, module: str, packages: str) -> None:
    """Raises ConfigError unless there is a module, which an option needs and these packages bring."""
    if importlib.util.find_spec(module) is None:
        raise ConfigError(f"{option}: {module} is not installed: pip install {packages}")


def configs_root() -> Path:
    """The directory that holds `configs`: inside the installed package, or the checkout."""
    package = Path(__file__).parent
    return next(root for root in (package / "shipped", package.parent) if (root / "configs").is_dir())


def find_file(option: str, path: str) -> Path:
    """A configuration or study file: the user's own, or else the one of this name that comes with the package.

    Args:
      option: "--study" for a study; otherwise it is a configuration.
      path: without a variant; for a file of the package "configs/cars_hist.py" or "cars_hist", for a study
        "configs/studies/hist_alpha.py" or "hist_alpha".

    Raises:
      ConfigError: no such file.
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
    """Executes a configuration or study file.

    Args:
      option: that names the file, for messages.
      path: see `find_file`.

    Raises:
      ConfigError: no such file, or an error in it.
    """
    file = find_file(option, path)
    if file.suffix != ".py":
        raise ConfigError(f"{option}={path}: is not a Python file")
    loader = _SourceLoader(file.stem, str(file))
    module = ModuleType(file.stem)
    module.__file__ = str(file)
    parents = [*file.resolve().parents]
    root = str(next((parent.parent for parent in parents if parent.name == "configs"), parents[:2][-1]))
    if root not in sys.path:  # configuration files import each other as `configs.…`
        sys.path.insert(0, root)
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
    """Turns every error of a user's file, whose code runs within this context, into a ConfigError that names the file.

    Args:
      file: the option with its value.
    """
    try:
        yield
    except UserError as error:
        raise ConfigError(f"{file}: {error}") from error
    except Exception as error:
        raise ConfigError(f"{file}: cannot be run ({type(error).__name__}: {error})") from error


def _stored_config(path: str) -> dict[str, Any]:
    """The configuration in a JSON file: the `config.json` of a run, or the configuration alone."""
    file = expand_path("--config", path)
    if not file.is_file():
        raise ConfigError(f"--config={path}: there is no such file")
    from dml_jax.config import upgraded

    content = read_json(file, dict[str, Any], "give the config.json of a run", ConfigError)
    values = content.get("config", content)
    if not isinstance(values, dict) or not isinstance(values.get("train"), dict):
        raise ConfigError(f"--config={path}: holds no configuration; give the config.json of a run")
    return upgraded(values)


def load_config(path: str, overrides: dict[str, str]) -> dict[str, Any]:
    """The configuration in a file as a nested dict, with overrides applied.

    Args:
      path: the file; `FILE:variant` calls its `get_config(variant)`; `config.json` of a run is a configuration, too.
      overrides: text by dotted key; parsed as the type that the key has in the file.

    Raises:
      ConfigError: no such file, variant or key, or a value of another type.
    """
    if path.endswith(".json"):
        values = _stored_config(path)
    else:
        name, colon, variant = path.partition(":")
        module = run_file("--config", name)
        if not hasattr(module, "get_config"):
            raise ConfigError(
                f"--config={path}: has no get_config(), so it is not a configuration; other files import it"
            )
        variants = getattr(module, "VARIANTS", ())
        if colon and variant not in variants:
            known = suggest(variant, variants) if variants else "this configuration has none"
            raise ConfigError(f"--config={path}: there is no variant {variant!r}; {known}")
        with running(f"--config={path}"):
            config: ConfigDict = module.get_config(variant) if colon else module.get_config()
            values = config.to_dict()
    from dml_jax.config import SAME_EXPERIMENT, Train
    from dml_jax.options.train import USERS

    for key, text in overrides.items():
        apply_override(values, key, text)
    for own, other in (("steps", "epochs"), ("epochs", "steps")):  # a new length replaces the one in the file
        if f"train.{own}" in overrides and f"train.{other}" not in overrides and values["train"][own]:
            values["train"][other] = 0
    unused: dict[str, Any] = {}  # details of a choice in the file that the new choice does not have
    if overrides.get("train.schedule", "step") != "step":
        unused |= {"train.milestones": Train.milestones, "train.gamma": Train.gamma}
    if "train.optimizer" in overrides:
        chosen = overrides["train.optimizer"]
        unused |= {f"train.{name}": getattr(Train, name) for name, users in USERS.items() if chosen not in users}
    if overrides.get("data.crop") == "none":
        unused |= {"data.image_size": 0, "data.resize": 0}
    for key in unused.keys() - overrides.keys():
        section, _, name = key.partition(".")
        values[section][name] = unused[key]
    if not set(overrides) <= set(SAME_EXPERIMENT):
        values["paper"] = {}  # it is not the experiment of the paper any more
    return values


def apply_override(values: dict[str, Any], key: str, text: str) -> None:
    """Sets the dotted `key` of a nested dict to `text`, parsed as the type of the present value."""
    *sections, last = key.split(".")
    section: Any = values
    for part in (*sections, last):
        if not isinstance(section, dict):
            raise ConfigError(f"{key}: {part} is below a value, not in a section")
        if part not in section:
            from dml_jax.config import flatten

            raise ConfigError(f"{key}: there is no such key; {suggest(key, flatten(values))}")
        holder, section = section, section[part]
    holder[last] = _parsed(key, text, section)


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


def _in_one_line(show: Callable[..., None]) -> Callable[..., None]:
    """Shows the warnings of this package like its errors, all others as before."""

    def shown(message: Warning | str, category: type[Warning], filename: str, *rest: Any) -> None:
        if category is UserWarning and Path(filename).is_relative_to(Path(__file__).parent):
            print(f"warning: {printable(' '.join(str(message).split()))}", file=sys.stderr)
        else:
            show(message, category, filename, *rest)

    return shown


def exit_code(body: Callable[[], object]) -> int:
    """Runs the body of a command; returns 0, 2 after an error the user can fix, or 128 + the number of a signal."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files need not be in the encoding of the terminal
            stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            # About details of a file; they would be printed beside the result or the error line.
            warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
            warnings.filterwarnings("ignore", "Reading `.npy`", UserWarning)
            warnings.showwarning = _in_one_line(warnings.showwarning)
            body()
    except UserError as error:
        print(f"error: {printable(' '.join(str(error).split()))}", file=sys.stderr)
        return 2
    except OSError as error:
        if error.errno not in FIXABLE:
            raise
        name = printable(str(error.filename or "a file"))
        print(f"error: {name}: cannot be used ({error.strerror})", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:  # --help, or a signal that a command handles
        return int(end.code or 0)
    return 0
