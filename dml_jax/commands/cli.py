"""Command lines: options, a configuration file and overrides of its keys; invalid input ends in one
sentence."""

import argparse
import importlib.util
import io
import os
import select
import signal
import sys
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from dml_jax.class_names import normalised
from dml_jax.errors import ConfigError, Escaping, exit_code_of, message_of, suggest
from dml_jax.errors import choices as choices
from dml_jax.errors import refuse as refuse
from dml_jax.errors import require as require
from dml_jax.files import expand_path

if TYPE_CHECKING:
    from dml_jax.data.sources import Options

T = TypeVar("T")
SPLIT_NAMES = "test", "train", "validation"
SERVER_PACKAGES = "starlette uvicorn httptools python-multipart"
TRUST_CODE = (
    "import the modules of other packages that a run's configuration names, which runs their code"
)
LARGE = (
    "The environment variable DML_JAX_MEGAPIXELS=200 allows images of 200 megapixels instead of "
    "89; decoding one needs about 12 bytes for each pixel, here 2.4 GB."
)
MODELS = "the work directory of a run, hf://user/name, a directory of converted weights, or lite0"


class Parser(argparse.ArgumentParser):
    """An argparse parser that raises ConfigError and understands `--config.section.key=value`."""

    def __init__(self, description: str | None, epilog: str = ""):
        spec: Any = getattr(sys.modules["__main__"], "__spec__", None)
        module = spec and not sys.argv[0].startswith("dml-jax ")
        super().__init__(
            prog=f"python -m {spec.name.removesuffix('.__main__')}" if module else None,
            description=description,
            epilog=epilog,
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )

    def error(self, message: str) -> NoReturn:
        raise ConfigError(message.removeprefix("argument "))

    def read(self, arguments: Sequence[str]) -> tuple[argparse.Namespace, dict[str, str]]:
        """(options, overrides by dotted key) from the arguments that follow the name of the
        program."""
        plain = [a for a in arguments if not a.startswith("--config.")]
        given = [a.removeprefix("--config.") for a in arguments if a.startswith("--config.")]
        problem = "give the value after an equals sign"
        refuse(f"--config.{text}: {problem}" for text in given if "=" not in text)
        overrides = dict(text.split("=", 1) for text in given)
        known = [name for action in self._actions for name in action.option_strings]
        # Before argparse: a misspelt option explains one that is missing.
        names = ((a, a.partition("=")[0]) for a in plain if a[:2] == "--" and a != "--")
        wrong = ((a, suggest(name, known)) for a, name in names if name not in known)
        refuse(f"{a}: there is no such option; {remedy}" for a, remedy in wrong)
        options, rest = self.parse_known_args(plain)
        refuse(f"{a}: there is no such option; {suggest(a, known)}" for a in rest)
        return options, overrides

    def read_plain(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The options of a command that has no configuration; an override is a ConfigError."""
        options, overrides = self.read(arguments)
        refuse(f"--config.{key}: {self.prog} has no configuration; remove it" for key in overrides)
        return options


def read_with_data(
    flags: Parser, arguments: Sequence[str]
) -> tuple[argparse.Namespace, dict[str, str]]:
    """The options and overrides; with --data, options of a run's data are refused."""
    options, overrides = flags.read(arguments)
    if options.data:
        refuse(f"--config.{key}: is not used with --data; remove it" for key in overrides)
        problem = f"--split={options.split}: is not used with --data; remove it"
        require(options.split == "test", problem)
    return options, overrides


def add_layout(flags: Parser, sessions: Sequence[str] = ()) -> None:
    """Adds the options of `layout`: what folders and names mean; `sessions` are the only valid
    ones."""
    text = (
        "which folders are splits; auto: those with usual names of splits; classes: ignore these "
        "and divide the classes; none: all folders are classes; or three names, e.g. "
        "train:valid:test"
    )
    flags.add_argument("--splits", default="auto", metavar="auto|classes|none|A:B:C", help=text)
    text = (
        "which photographs were taken together and are left out together: those of one EXIF date, "
        "folder in the class, match of a regular expression in the name, or value of a column"
    )
    how: dict[str, Any] = {"metavar": "date|folder|REGEX|COLUMN", "help": text}
    if sessions:
        how = {"choices": sessions, "help": "folders in class folders are sessions"}
    flags.add_argument("--session", default="", **how)
    text = (
        "which of nested folders is the class: the innermost, the outermost or all (default: auto)"
    )
    kinds = ("auto", "leaf", "top", "path")
    flags.add_argument("--classes", default="auto", choices=kinds, help=text)


def layout(options: argparse.Namespace) -> "Options":
    """The options of `add_layout`; ConfigError if they are invalid."""
    from dml_jax.data.sources import Options

    how = Options(splits=options.splits, session=options.session, classes=options.classes)
    how.named()
    return how


def add_engine(flags: Parser) -> None:
    """Adds the options for the place of the computation."""
    text = "ray: the machines of a Ray cluster; default: local"
    flags.add_argument("--engine", choices=("local", "ray"), default="local", help=text)
    text = "the Ray cluster, e.g. auto; default: Ray is started on this machine"
    flags.add_argument("--address", help=text)


def check_engine(options: argparse.Namespace) -> None:
    """Raises ConfigError unless the options of `add_engine` fit each other and Ray is installed if
    it is needed."""
    on_ray = options.engine == "ray"
    require(on_ray or not options.address, f"--address={options.address}: needs --engine=ray")
    if on_ray:
        check_installed("--engine=ray", "ray", '-e ".[ray]"')


def add_model(
    flags: argparse.ArgumentParser,
    *,
    required: bool = True,
    versions: bool = False,
    runtime: bool = False,
) -> None:
    """Adds the options of `jax_setup.load`: which model, which versions of an image, and which
    library embeds."""
    text = f"{MODELS} (weights of an installed package)"
    flags.add_argument("--model", required=required, metavar="MODEL", help=text)
    text = "reported (default), latest, best or a step"
    flags.add_argument("--checkpoint", default="reported", help=text)
    flags.add_argument("--trust_code", action="store_true", help=TRUST_CODE)
    if versions:
        text = "average over an image and its mirror image"
        flags.add_argument("--flip", action="store_true", help=text)
        rule = "positive numbers below 10, e.g. 1,1.25"
        scales = numbers(float, rule, lambda scale: 0 < scale < 10)
        text = "average over these sizes, e.g. 1,1.25"
        flags.add_argument("--scales", metavar="S,S,…", type=scales, default=(1.0,), help=text)
    if runtime:
        text = (
            "onnxruntime is faster on CPUs; default: onnxruntime if the graph of the model is in "
            "the cache, else jax; embed, enroll and catalogue then make it at their end"
        )
        flags.add_argument("--runtime", choices=("jax", "onnxruntime"), help=text)


def add_decision(flags: argparse.ArgumentParser) -> None:
    """Adds the arguments of `Index.classify`, see `decision`."""
    text = "most probable classes in an answer (default: 3)"
    flags.add_argument("--top", type=int, default=3, help=text)
    limit = flags.add_mutually_exclusive_group()
    text = 'answer "unknown" so that at most this share of the measured strangers gets a name'
    limit.add_argument("--reject", type=float, help=text)
    text = "probability below which the answer is unknown"
    limit.add_argument("--min_probability", type=float, help=text)


def decision(options: argparse.Namespace) -> dict[str, float | None]:
    """The limit of `add_decision`, after checking all of its options."""
    require(options.top >= 1, f"--top={options.top}: must be 1 or more; e.g. 3")
    from dml_jax.evaluation import expectations  # whose import is slow

    limit = {key: getattr(options, key) for key in ("reject", "min_probability")}
    expectations.choice(**limit)
    return limit


def file_to_write(option: str, path: str) -> Path:
    """The file that an option names, in an existing directory."""
    file = expand_path(option, path)
    usable = file.parent.is_dir() and not file.is_dir()
    require(usable, f"{option}={path}: must be a file in an existing directory")
    return file


def numbers(
    kind: Callable[[str], T], rule: str, valid: Callable[[T], bool] = lambda number: True
) -> Callable[[str], tuple[T, ...]]:
    """The type of an option of numbers, separated by commas, that are all valid."""

    def parse(text: str) -> tuple[T, ...]:
        with suppress(ValueError):
            found = tuple(kind(part) for part in text.split(","))
            if all(map(valid, found)):
                return found
        raise argparse.ArgumentTypeError(f"{text}: must be {rule}")

    return parse


def two_classes(text: str) -> tuple[str, str]:
    """The names of two classes in an argument."""
    if text.count(":") != 1:
        raise argparse.ArgumentTypeError(f"{text}: must be two names of classes, e.g. wren:robin")
    first, _, second = text.partition(":")
    return normalised(first), normalised(second)


def check_installed(option: str, module: str, packages: str) -> None:
    """Raises ConfigError unless a module is installed that an option needs; these packages contain
    it."""
    spec = importlib.util.find_spec(module)
    # Any folder of that name is a module without an origin.
    installed = spec is not None and spec.origin is not None
    require(installed, f"{option}: {module} is not installed: pip install {packages}")


def _in_one_line(show: Callable[..., None]) -> Callable[..., None]:
    """Shows the warnings of this package like its errors, all others as before."""

    def shown(message: Warning | str, category: type[Warning], filename: str, *rest: Any) -> None:
        if category is UserWarning and Path(filename).is_relative_to(Path(__file__).parents[1]):
            print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)
        else:
            show(message, category, filename, *rest)

    return shown


def exit_code(body: Callable[[], object]) -> int:
    """Runs the body of a command and returns its exit code.

    0; 2 after an error the user can fix; 75 after one that may not occur again; 128 + the number of
    a signal. The latter includes SIGPIPE if the reader of standard output, e.g. `head`, has ended:
    nothing else is printed then.
    """
    for stream in (sys.stdout, sys.stderr):
        # Names of files need not be in the encoding of the terminal.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        streams: Any = map(Escaping, (sys.stdout, sys.stderr))
        output, errors = streams
        with redirect_stdout(output), redirect_stderr(errors):
            code = _exit_code(body)
        sys.stdout.flush()  # rather than when the interpreter ends, which would print a failure
        return code
    except BrokenPipeError:
        output = select.poll()
        output.register(sys.stdout, 0)
        if not output.poll(0):  # another pipe is broken
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what is still buffered
        return 128 + signal.SIGPIPE


def _exit_code(body: Callable[[], object]) -> int:
    try:
        with warnings.catch_warnings():
            # About details of a file; they would be printed beside the result or the error line.
            warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
            warnings.filterwarnings("ignore", "Reading `.npy`", UserWarning)
            warnings.showwarning = _in_one_line(warnings.showwarning)
            # JAX then compiles; a cache on a full or read-only disk is not needed.
            message = "Error (reading|writing) persistent compilation cache"
            warnings.filterwarnings("ignore", message, UserWarning)
            body()
    except Exception as error:
        code = exit_code_of(error)
        if code == 1:
            raise
        print(f"error: {message_of(error)}", file=sys.stderr)
        return code
    except KeyboardInterrupt:
        print("stopped by Ctrl-C", file=sys.stderr)
        return 130
    except SystemExit as end:  # --help, or a signal that a command handles
        broken = isinstance(end.__context__, BrokenPipeError)  # Rich ends the process with 1
        return 128 + signal.SIGPIPE if broken else int(end.code or 0)
    return 0
