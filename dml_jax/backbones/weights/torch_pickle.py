"""Reading a pickle as data: dicts, lists, numbers, and calls of a few given functions. No other code is executed.

A pickle is a program for a stack machine, whose instructions can import any name of any installed module and call it.
This interpreter imports nothing: names must be in the caller's table, and only entries of the table are called. The
standard library's `pickletools` parses the instructions; it executes nothing. Time and memory are proportional to the
size of the pickle: keys and names must be of types that are hashed in constant time, unlike nested tuples, and the
numbers of bytes, of instructions and of elements that functions get are limited, as one list may be passed again and
again, and a sparse file may have any size.
"""

import pickletools
from collections.abc import Callable, Mapping, Sized
from typing import IO, Any, cast


class Malformed(ValueError):
    """Not a pickle of plain data."""


class Refused(Malformed):
    """A name that is not in the table; the message is `module.name`."""


Names = Mapping[tuple[str, str], Any]

MAX_INSTRUCTIONS = 2**21  # a pickle with the weights of ResNet-101 has 19,147
MAX_BYTES = 2**28  # of a pickle; the numbers of tensors are not in it
MAX_ELEMENTS = 2**20  # passed to functions, in all
_MARK = object()
_IGNORED = {"PROTO", "FRAME"}
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Limited:
    """What `pickletools` needs of a file, with at most `MAX_BYTES`."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._left, self.tell = file, MAX_BYTES, file.tell

    def read(self, size: int) -> bytes:
        self._count(size)
        return self._file.read(size)

    def readline(self) -> bytes:
        line = self._file.readline(self._left + 1)
        self._count(len(line))
        return line

    def _count(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise Malformed(f"it has more than {MAX_BYTES >> 20} MiB beside its numbers")


def load(file: IO[bytes], names: Names, persistent: Callable[[Any], Any]) -> Any:
    """Reads one pickle; afterwards the file is positioned behind it.

    Args:
      file: positioned at the start of a pickle.
      names: (module, name) -> a function of plain data, a value, or `inert`.
      persistent: persistent identifier -> the object it refers to.

    Raises:
      Refused: a name is not in the table.
      Malformed: an instruction that plain data does not need, or a broken pickle.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}
    elements = 0

    def pop_to_mark() -> list[Any]:
        values = []
        while (value := stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    argument: Any
    for number, (opcode, argument, _) in enumerate(pickletools.genops(cast(IO[bytes], _Limited(file)))):
        if number == MAX_INSTRUCTIONS:
            raise Malformed(f"it has more than {MAX_INSTRUCTIONS} instructions")
        match opcode.name:
            case name if name in _IGNORED:
                pass
            case name if name in _CONSTANTS:
                stack.append(_CONSTANTS[name])
            case name if name in _VALUES:
                stack.append(argument)
            case name if name in _TUPLES:
                values = stack[-_TUPLES[name] :]
                del stack[-_TUPLES[name] :]
                stack.append(tuple(values))
            case "MARK":
                stack.append(_MARK)
            case "TUPLE":
                stack.append(tuple(pop_to_mark()))
            case "EMPTY_LIST":
                stack.append([])
            case "LIST":
                stack.append(pop_to_mark())
            case "EMPTY_DICT":
                stack.append({})
            case "DICT":
                values = pop_to_mark()
                stack.append(_pairs(values))
            case "APPEND":
                value = stack.pop()
                stack[-1].append(value)
            case "APPENDS":
                values = pop_to_mark()
                stack[-1].extend(values)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                stack[-1].update(_pairs([key, value]))
            case "SETITEMS":
                values = pop_to_mark()
                stack[-1].update(_pairs(values))
            case "MEMOIZE":
                memo[len(memo)] = stack[-1]
            case "PUT" | "BINPUT" | "LONG_BINPUT":
                memo[argument] = stack[-1]
            case "GET" | "BINGET" | "LONG_BINGET":
                stack.append(memo[argument])
            case "GLOBAL":
                module, _, name = argument.partition(" ")
                stack.append(_look_up(names, module, name))
            case "STACK_GLOBAL":
                name, module = stack.pop(), stack.pop()
                stack.append(_look_up(names, module, name))
            case "REDUCE" | "NEWOBJ":
                arguments, function = stack.pop(), stack.pop()
                if not (callable(function) and any(function is known for known in names.values())):
                    raise Malformed("it calls an object that is not in the table")
                elements += len(arguments) + sum(len(value) for value in arguments if isinstance(value, Sized))
                if elements > MAX_ELEMENTS:
                    raise Malformed(f"it passes more than {MAX_ELEMENTS} elements to functions")
                stack.append(function(*arguments))
            case "BUILD":
                stack.pop()  # attributes of an object: not needed for weights
            case "BINPERSID":
                stack.append(persistent(stack.pop()))
            case "STOP":
                return stack.pop()
            case name:
                raise Malformed(f"unsupported instruction {name}")
    raise Malformed("it has no end")


def inert(*arguments: Any) -> None:
    """Table entry for classes whose objects are stored beside the weights but not needed: returns None."""


def _pairs(values: list[Any]) -> dict[Any, Any]:
    """Alternating keys and values as a dict."""
    keys = values[::2]
    if not all(isinstance(key, str | int | float | bytes | None) for key in keys):
        raise Malformed("a key is neither a string nor a number")
    return dict(zip(keys, values[1::2], strict=True))


def _look_up(names: Names, module: Any, name: Any) -> Any:
    if not (isinstance(module, str) and isinstance(name, str)):
        raise Malformed("a name is not a string")
    if (module, name) not in names:
        raise Refused(f"{module}.{name}")
    return names[module, name]
