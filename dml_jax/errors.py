"""Errors that the user can fix: one sentence that says what is wrong and how to fix it."""

import errno
import os
import re
from collections.abc import Collection, Iterable, Sequence
from difflib import get_close_matches
from typing import Any, TextIO


class UserError(Exception):
    """What the user can fix: one line `error: ...`, exit code 2, no traceback."""


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
    found = (getattr(errno, name, None) for name in names.split())  # macOS lacks some of them
    return {number for number in found if number is not None}


UNWRITABLE = _numbers("ENOSPC EDQUOT EFBIG EROFS")  # caused by the disk, not by the file
# Files and folders that the user can change; file systems without locks raise ENOLCK or ENOSYS.
FIXABLE = UNWRITABLE | _numbers(
    "EACCES EPERM EEXIST EISDIR ENOTDIR ENOTEMPTY ELOOP ENAMETOOLONG ENOLCK ENOSYS"
)
# Storage, hardware or the network: may not occur again.
PASSING = _numbers(
    "EIO ESTALE ETIMEDOUT EREMOTEIO ENOLINK ENOTCONN ECONNABORTED ECONNREFUSED ECONNRESET "
    "EHOSTDOWN EHOSTUNREACH ENETDOWN ENETUNREACH ENETRESET ENODEV ENXIO EREMCHG EAGAIN"
)
# The status with which messages of JAX, XLA and tensorstore begin.
STATUS = re.compile(
    r"(CANCELLED|UNKNOWN|INVALID_ARGUMENT|DEADLINE_EXCEEDED|NOT_FOUND|ALREADY_EXISTS|ABORTED|"
    r"PERMISSION_DENIED|RESOURCE_EXHAUSTED|FAILED_PRECONDITION|OUT_OF_RANGE|UNIMPLEMENTED|"
    r"INTERNAL|UNAVAILABLE|DATA_LOSS|UNAUTHENTICATED)\b"
)
OF_USER = ("RESOURCE_EXHAUSTED", "INVALID_ARGUMENT")


def exit_code_of(error: BaseException) -> int:
    """2 if the user has to fix the error, 75 if it may not occur again, 1 otherwise."""
    match error:
        case UserError() | MemoryError():
            return 2
        case PeerError():
            return os.EX_TEMPFAIL
        case OSError():
            return 2 if error.errno in FIXABLE else os.EX_TEMPFAIL if error.errno in PASSING else 1
        case RuntimeError() | ValueError() if status := STATUS.match(str(error)):
            return 2 if status[1] in OF_USER else os.EX_TEMPFAIL
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


def printable(text: str, kept: str = "") -> str:
    """Text with control characters and the undecodable bytes of file names escaped: on one line,
    unless ends of lines are `kept`."""
    if text.isprintable():
        return text
    escaped = {c: c.encode("unicode_escape").decode() for c in {*text} if not c.isprintable()}
    return text.translate({ord(c): escaped[c] for c in escaped.keys() - {*kept}})


LAYOUT = "\n\t"  # the control characters that commands print


class Escaping:
    """A stream for `print` that escapes what would control a terminal, such as the codes in the
    name of a file; Rich writes its own codes past it, and other libraries write none."""

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
    """Raises ConfigError with the first of the problems, if there is one."""
    for problem in problems:
        raise ConfigError(problem)


def require(condition: object, problem: str) -> None:
    """Raises ConfigError unless a condition holds."""
    refuse([] if condition else [problem])


def choices(option: str, text: str, known: Collection[str]) -> tuple[str, ...]:
    """The names, separated by commas, of an option, once each; ConfigError for unknown ones."""
    names = tuple(dict.fromkeys(text.split(",")))
    unknown = (name for name in names if name not in known)
    refuse(f"{option}={text}: there is no {name!r}; {suggest(name, known)}" for name in unknown)
    return names


def suggest(word: str, known: Iterable[str]) -> str:
    """The end of an error message: the most similar known name, or all of them if none is similar.

    Options are compared by their last parts, and with options of other sections as a whole.
    """
    names = sorted(set(known))
    section, _, last = word.rpartition(".")
    first = section.partition(".")[0]
    same = [name for name in names if not first or name.startswith(f"{first}.")]
    same.sort(key=lambda name: name.rpartition(".")[0] == section)  # wins among equal ends
    ends = {name.rpartition(".")[2].lower(): name for name in same}
    near = [ends[end] for end in get_close_matches(last.lower(), ends, 1)]
    others = [name for name in names if not name.startswith(f"{first}.")]
    if near := near or get_close_matches(word, others, 1):
        return f"did you mean {near[0].removeprefix(f'{section}.')}?"
    parts = [name.rpartition(".") for name in names if section]
    siblings = [name for prefix, _, name in parts if prefix == section]
    # In paths of layers, "blocks_*/conv" stands for the convolutions of all blocks.
    shown = (
        re.sub(r"_\d+(?=/|$)", "_*", n) if "/" in n or section else n.partition(".")[0]
        for n in siblings or names
    )
    return f"known: {', '.join(sorted(set(shown)))}"
