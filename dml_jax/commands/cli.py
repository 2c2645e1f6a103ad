"""Command lines: options, a configuration file and overrides of its keys; invalid input ends in one sentence."""

import argparse
import importlib.util
import io
import sys
import warnings
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from dml_jax.errors import ConfigError, DataWarning, exit_code_of, printable, suggest
from dml_jax.files import expand_path

T = TypeVar("T")
TRUST_CODE = "import the modules of other packages that a run's configuration names, which runs their code"


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
        """(options, overrides by dotted key) from the arguments that follow the name of the program."""
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
        """The options of a command, e.g. "dml-jax serve", that has no configuration; an override is a ConfigError."""
        options, overrides = self.read(arguments)
        if overrides:
            raise ConfigError(f"--config.{next(iter(overrides))}: {command} has no configuration; remove it")
        return options


def add_engine(flags: Parser) -> None:
    """Adds the options that say where to compute."""
    flags.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="ray: the machines of a Ray cluster; default: local"
    )
    flags.add_argument("--address", help="of the Ray cluster, e.g. auto; default: Ray is started on this machine")


def check_engine(options: argparse.Namespace) -> None:
    """Raises ConfigError unless the options of `add_engine` fit each other and Ray is installed if it is needed."""
    if options.address and options.engine != "ray":
        raise ConfigError(f"--address={options.address}: is for --engine=ray")
    if options.engine == "ray":
        check_installed("--engine=ray", "ray", "ray")


def file_to_write(option: str, path: str) -> Path:
    """The file that an option names; raises ConfigError if it is a directory, or its directory does not exist."""
    file = expand_path(option, path)
    if file.is_dir():
        raise ConfigError(f"{option}={path}: is a directory; give a file")
    if not file.parent.is_dir():
        raise ConfigError(f"{option}={path}: there is no directory {file.parent}")
    return file


def choices(option: str, text: str, known: Collection[str]) -> tuple[str, ...]:
    """The names, separated by commas, that an option gives, without duplicates; ConfigError if one is not known."""
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in known:
            raise ConfigError(f"{option}={text}: there is no {name!r}; {suggest(name, known)}")
    return names


def numbers(
    option: str, text: str, kind: Callable[[str], T], rule: str, valid: Callable[[T], bool] = lambda number: True
) -> tuple[T, ...]:
    """The numbers, separated by commas, that an option gives; raises ConfigError with the rule unless all are valid."""
    try:
        found = tuple(kind(part) for part in text.split(","))
    except ValueError:
        found = ()
    if not found or not all(map(valid, found)):
        raise ConfigError(f"{option}={text}: must be {rule}")
    return found


def check_installed(option: str, module: str, packages: str) -> None:
    """Raises ConfigError unless there is a module, which an option needs and these packages bring."""
    spec = importlib.util.find_spec(module)
    if spec is None or spec.origin is None:  # any folder of that name is a module without an origin
        raise ConfigError(f"{option}: {module} is not installed: pip install {packages}")


def _in_one_line(show: Callable[..., None]) -> Callable[..., None]:
    """Shows the warnings of this package like its errors, all others as before."""

    def shown(message: Warning | str, category: type[Warning], filename: str, *rest: Any) -> None:
        if category in (UserWarning, DataWarning) and Path(filename).is_relative_to(Path(__file__).parents[1]):
            print(f"warning: {printable(' '.join(str(message).split()))}", file=sys.stderr)
        else:
            show(message, category, filename, *rest)

    return shown


def exit_code(body: Callable[[], object]) -> int:
    """Runs the body of a command and returns its exit code.

    0; 2 after an error the user can fix; 75 after one that may not occur again; 128 + the number of a signal.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # names of files need not be in the encoding of the terminal
            stream.reconfigure(errors="backslashreplace")
    try:
        with warnings.catch_warnings():
            # About details of a file; they would be printed beside the result or the error line.
            warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
            warnings.filterwarnings("ignore", "Reading `.npy`", UserWarning)
            warnings.simplefilter("default", DataWarning)
            warnings.showwarning = _in_one_line(warnings.showwarning)
            # JAX then compiles; a cache on a full or read-only disk is not needed.
            warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache", UserWarning)
            body()
    except Exception as error:
        code = exit_code_of(error)
        if code == 1:
            raise
        message = str(error)
        if isinstance(error, OSError):
            message = f"{error.filename or 'a file'}: cannot be used ({error.strerror})"
        print(f"error: {printable(' '.join(message.split()))}", file=sys.stderr)
        return code
    except KeyboardInterrupt:
        return 130
    except SystemExit as end:  # --help, or a signal that a command handles
        return int(end.code or 0)
    return 0
