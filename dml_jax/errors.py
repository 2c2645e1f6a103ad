"""Errors that the user can fix: one sentence that says what is wrong and how to fix it."""

import errno
import os
import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, TextIO


class UserError(Exception):
    """An error that the user can fix: one line `error: ...`, exit code 2, no traceback."""


class ConfigError(UserError):
    """An option or a configuration value: names the key, the value, the rule and the remedy."""


class DataError(UserError):
    """A data set, an image or an array: names the file or the shape."""


class WeightsError(UserError):
    """A file of published weights: names the file and the tensor."""


class CheckpointError(UserError):
    """A work directory or a checkpoint in it: names the path."""


class DivergedError(UserError):
    """The loss, a gradient or the train state is not finite: names the step and the values."""


class PeerError(Exception):
    """Another process or the network failed; the same command may succeed if repeated.

    Printed as one line `error: ...`, exit code 75 (EX_TEMPFAIL of sysexits.h), no traceback.
    """


def _numbers(names: str) -> set[int]:
    numbers = (getattr(errno, name, None) for name in names.split())  # macOS lacks some of them
    return {number for number in numbers if number is not None}


UNWRITABLE = _numbers("ENOSPC EDQUOT EFBIG EROFS")  # caused by the disk, not by the file
# Problems of files and folders; file systems without locks raise ENOLCK or ENOSYS.
FIXABLE = UNWRITABLE | _numbers(
    "EACCES EPERM EEXIST EISDIR ENOTDIR ENOTEMPTY ELOOP ENAMETOOLONG ENOLCK ENOSYS"
)
# Storage, hardware or the network: repeating may succeed.
TRANSIENT = _numbers(
    "EIO ESTALE ETIMEDOUT EREMOTEIO ENOLINK ENOTCONN ECONNABORTED ECONNREFUSED ECONNRESET "
    "EHOSTDOWN EHOSTUNREACH ENETDOWN ENETUNREACH ENETRESET ENODEV ENXIO EREMCHG EAGAIN"
)
# Messages of JAX, XLA and tensorstore begin with one of these.
STATUS = re.compile(
    r"(CANCELLED|UNKNOWN|INVALID_ARGUMENT|DEADLINE_EXCEEDED|NOT_FOUND|ALREADY_EXISTS|ABORTED|"
    r"PERMISSION_DENIED|RESOURCE_EXHAUSTED|FAILED_PRECONDITION|OUT_OF_RANGE|UNIMPLEMENTED|"
    r"INTERNAL|UNAVAILABLE|DATA_LOSS|UNAUTHENTICATED)\b"
)
FIXABLE_STATUS = ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT")


def exit_code_of(error: BaseException) -> int:
    """2 if the user has to fix the error, 75 if repeating may succeed, 1 otherwise."""
    match error:
        case UserError() | MemoryError():
            return 2
        case PeerError():
            return os.EX_TEMPFAIL
        case OSError():
            transient = os.EX_TEMPFAIL if error.errno in TRANSIENT else 1
            return 2 if error.errno in FIXABLE else transient
        case RuntimeError() | ValueError() if status := STATUS.match(str(error)):
            return 2 if status[1] in FIXABLE_STATUS else os.EX_TEMPFAIL
    return 1


def message_of(error: BaseException) -> str:
    """The line that is printed for an error."""
    message = str(error)
    if isinstance(error, MemoryError) or message.startswith("RESOURCE_EXHAUSTED"):
        why = f" ({message.splitlines()[0][:200]})" if message else ""
        remedy = "close other programs, or use fewer or smaller images, or a larger machine"
        message = f"not enough memory{why}; {remedy}"
    elif isinstance(error, OSError):
        message = f"{error.filename or 'a file'}: cannot be used ({error.strerror})"
    return printable(" ".join(message.split()))


def printable(text: str, keep: str = "") -> str:
    """Escapes control characters, except those in `keep`, and undecodable bytes of file names."""
    if text.isprintable():
        return text
    escaped = {c: c.encode("unicode_escape").decode() for c in {*text} if not c.isprintable()}
    return text.translate({ord(c): escaped[c] for c in escaped.keys() - {*keep}})


LAYOUT = "\n\t"  # the control characters that commands print


class Escaping:
    """A stream for `print` that escapes terminal codes in the text, e.g. from a file name.

    Rich writes its own codes to the underlying stream; other libraries write none."""

    def __init__(self, stream: TextIO):
        self.rich_proxied_file = stream  # Rich looks for this name

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(printable(text, LAYOUT))

    def isatty(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)


def counted(number: int, noun: str) -> str:
    """A number with its noun: "1 class", "2 classes", "1,000 images"."""
    plural = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number:,} {noun}{plural}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """The first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def refuse(problems: Iterable[str]) -> None:
    """Raises ConfigError for the first problem, if there is one."""
    for problem in problems:
        raise ConfigError(problem)


def require(condition: object, problem: str) -> None:
    """Raises ConfigError(problem) unless the condition holds."""
    refuse([] if condition else [problem])


def choices(option: str, text: str, valid: Collection[str]) -> tuple[str, ...]:
    """The comma-separated names in an option, without duplicates; ConfigError for unknown ones."""
    names = tuple(dict.fromkeys(text.split(",")))
    unknown = (name for name in names if name not in valid)
    refuse(f"{option}={text}: {name!r} is unknown; {suggest(name, valid)}" for name in unknown)
    return names


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of an error message: the most similar known name or, if none is similar, all of them.

    An option is compared by its last part within its section, and as a whole with other options.
    """
    names = sorted(set(known))
    section, _, last = word.rpartition(".")
    first = section.partition(".")[0]
    in_section = [name for name in names if not first or name.startswith(f"{first}.")]
    in_section.sort(key=lambda name: name.rpartition(".")[0] == section)  # the same section wins
    ends = {name.rpartition(".")[2].lower(): name for name in in_section}
    matches = [ends[end] for end in get_close_matches(last.lower(), ends, 1)]
    elsewhere = [name for name in names if not name.startswith(f"{first}.")]
    if matches := matches or get_close_matches(word, elsewhere, 1):
        return f"did you mean {matches[0].removeprefix(f'{section}.')}?"
    parts = [name.rpartition(".") for name in names if section]
    siblings = [name for prefix, _, name in parts if prefix == section]
    # In paths of layers, "blocks_*/conv" stands for the convolutions of all blocks.
    abbreviated = (
        re.sub(r"_\d+(?=/|$)", "_*", n) if "/" in n or section else n.partition(".")[0]
        for n in siblings or names
    )
    return f"known: {', '.join(sorted(set(abbreviated)))}"
