"""Command lines: options, a configuration file and overrides of its keys."""

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
        """(options, overrides by dotted key) of a command line without the program's name."""
        plain = [a for a in arguments if not a.startswith("--config.")]
        texts = [a.removeprefix("--config.") for a in arguments if a.startswith("--config.")]
        problem = "give the value after an equals sign"
        refuse(f"--config.{text}: {problem}" for text in texts if "=" not in text)
        overrides = dict(text.split("=", 1) for text in texts)
        valid = [name for action in self._actions for name in action.option_strings]
        # Before argparse, which would report the missing option instead of the misspelt one.
        names = ((a, a.partition("=")[0]) for a in plain if a[:2] == "--" and a != "--")
        unknown = ((a, suggest(name, valid)) for a, name in names if name not in valid)
        refuse(f"{a}: unknown option; {remedy}" for a, remedy in unknown)
        options, rest = self.parse_known_args(plain)
        refuse(f"{a}: unexpected argument; {suggest(a, valid)}" for a in rest)
        return options, overrides

    def read_plain(self, arguments: Sequence[str]) -> argparse.Namespace:
        """The options of a command without a configuration; ConfigError for an override."""
        options, overrides = self.read(arguments)
        refuse(f"--config.{key}: {self.prog} has no configuration; remove it" for key in overrides)
        return options


def read_with_data(
    flags: Parser, arguments: Sequence[str]
) -> tuple[argparse.Namespace, dict[str, str]]:
    """The options and overrides; ConfigError for --data with an option of the run's data."""
    options, overrides = flags.read(arguments)
    if options.data:
        refuse(f"--config.{key}: has no effect with --data; remove it" for key in overrides)
        problem = f"--split={options.split}: has no effect with --data; remove it"
        require(options.split == "test", problem)
    return options, overrides


def add_layout(flags: Parser, sessions: Sequence[str] = ()) -> None:
    """Adds the options of `layout`: the meaning of folders and names; `sessions` restricts
    --session to these values."""
    text = (
        "which folders are splits; auto: those with usual split names, such as train; classes: "
        "ignore these names and split by class; none: all folders are classes; or three names, "
        "e.g. train:valid:test"
    )
    flags.add_argument("--splits", default="auto", metavar="auto|classes|none|A:B:C", help=text)
    text = (
        "how to group photographs taken together, which are left out together: by EXIF date, "
        "folder within the class, a regular expression on the name, or a column"
    )
    how: dict[str, Any] = {"metavar": "date|folder|REGEX|COLUMN", "help": text}
    if sessions:
        how = {"choices": sessions, "help": "folders in class folders are sessions"}
    flags.add_argument("--session", default="", **how)
    text = (
        "which nested folder is the class: the innermost, the outermost or the path (default: auto)"
    )
    kinds = ("auto", "leaf", "top", "path")
    flags.add_argument("--classes", default="auto", choices=kinds, help=text)


def layout(options: argparse.Namespace) -> "Options":
    """The options of `add_layout`; ConfigError if they are invalid."""
    from dml_jax.data.sources import Options

    how = Options(splits=options.splits, session=options.session, classes=options.classes)
    how.parse_splits()
    return how


def add_engine(flags: Parser) -> None:
    """Adds the options that choose where to compute."""
    text = "ray: on the machines of a Ray cluster (default: local)"
    flags.add_argument("--engine", choices=("local", "ray"), default="local", help=text)
    text = "the Ray cluster, e.g. auto; default: Ray is started on this machine"
    flags.add_argument("--address", help=text)


def check_engine(options: argparse.Namespace) -> None:
    """Raises ConfigError if --address needs --engine=ray, or if Ray is needed but missing."""
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
    """Adds the options of `jax_setup.load`: the model, the versions of an image that are averaged,
    and the library that embeds."""
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
            "onnxruntime is faster on CPUs; default: onnxruntime if the model's graph is cached, "
            "otherwise jax; embed, enroll and catalogue then add the graph to the cache at the end"
        )
        flags.add_argument("--runtime", choices=("jax", "onnxruntime"), help=text)


def add_decision(flags: argparse.ArgumentParser) -> None:
    """Adds the arguments of `Index.classify`, see `decision`."""
    text = "number of most probable classes to report (default: 3)"
    flags.add_argument("--top", type=int, default=3, help=text)
    limit = flags.add_mutually_exclusive_group()
    text = 'answer "unknown" often enough that at most this share of measured strangers gets a name'
    limit.add_argument("--reject", type=float, help=text)
    text = 'answer "unknown" if the highest probability is below this'
    limit.add_argument("--min_probability", type=float, help=text)


def decision(options: argparse.Namespace) -> dict[str, float | None]:
    """The threshold options of `add_decision`; ConfigError if one of its options is invalid."""
    require(options.top >= 1, f"--top={options.top}: must be 1 or more; e.g. 3")
    from dml_jax.evaluation import expectations  # whose import is slow

    limit = {key: getattr(options, key) for key in ("reject", "min_probability")}
    expectations.check(**limit)
    return limit


def file_to_write(option: str, path: str) -> Path:
    """The path of an output file in an option; ConfigError unless its directory exists."""
    file = expand_path(option, path)
    usable = file.parent.is_dir() and not file.is_dir()
    require(usable, f"{option}={path}: must be a file in an existing directory")
    return file


def numbers(
    kind: Callable[[str], T], rule: str, valid: Callable[[T], bool] = lambda number: True
) -> Callable[[str], tuple[T, ...]]:
    """The argparse type of a list of numbers, separated by commas, that are all valid."""

    def parse(text: str) -> tuple[T, ...]:
        with suppress(ValueError):
            values = tuple(kind(part) for part in text.split(","))
            if all(map(valid, values)):
                return values
        raise argparse.ArgumentTypeError(f"{text}: must be {rule}")

    return parse


def two_classes(text: str) -> tuple[str, str]:
    """The class names in an argument OLD:NEW or A:B."""
    if text.count(":") != 1:
        raise argparse.ArgumentTypeError(f"expected two class names, e.g. wren:robin, got {text!r}")
    first, _, second = text.partition(":")
    return normalised(first), normalised(second)


def check_installed(option: str, module: str, packages: str) -> None:
    """Raises ConfigError if the module that an option needs is missing; `packages` contain it."""
    spec = importlib.util.find_spec(module)
    # A folder of that name also counts as a module, but without an origin.
    installed = spec is not None and spec.origin is not None
    require(installed, f"{option}: {module} is not installed: pip install {packages}")


def _in_one_line(show: Callable[..., None]) -> Callable[..., None]:
    """Prints warnings of this package like errors, on one line, and passes others to `show`."""

    def shown(
        message: Warning | str, category: type[Warning], filename: str, *details: Any
    ) -> None:
        if category is UserWarning and Path(filename).is_relative_to(Path(__file__).parents[1]):
            print(f"warning: {' '.join(str(message).split())}", file=sys.stderr)
        else:
            show(message, category, filename, *details)

    return shown


def exit_code(body: Callable[[], object]) -> int:
    """Runs the body of a command and returns its exit code.

    0: success; 2: an error that the user can fix; 75: an error where repeating may succeed; 128 +
    the number of a signal. If the reader of standard output, e.g. `head`, has ended, the signal is
    SIGPIPE and nothing is printed.
    """
    for stream in (sys.stdout, sys.stderr):
        # File names may contain bytes that the terminal's encoding cannot show.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        streams: Any = map(Escaping, (sys.stdout, sys.stderr))
        output, errors = streams
        with redirect_stdout(output), redirect_stderr(errors):
            code = _exit_code(body)
        sys.stdout.flush()  # here, because the interpreter would print a failure at exit
        return code
    except BrokenPipeError:
        output = select.poll()
        output.register(sys.stdout, 0)
        if not output.poll(0):  # the broken pipe is another one
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # discards the buffer
        return 128 + signal.SIGPIPE


def _exit_code(body: Callable[[], object]) -> int:
    try:
        with warnings.catch_warnings():
            # These concern details of a file and would clutter the output.
            warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
            warnings.filterwarnings("ignore", "Reading `.npy`", UserWarning)
            warnings.showwarning = _in_one_line(warnings.showwarning)
            # If the cache cannot be used, e.g. on a full or read-only disk, JAX compiles.
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
