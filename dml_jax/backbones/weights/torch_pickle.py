"""Reading a pickle as data: dicts, lists, numbers, and calls of a few named functions. Nothing can be executed.

A pickle is a program for a small stack machine; two of its instructions look a name up in any installed module and call
it. This machine has no lookup: a name must stand in the caller's table, and only what the table holds is called. The
instructions are taken apart by the standard library's `pickletools`, which executes nothing.
"""

import pickletools
from collections.abc import Callable, Mapping
from typing import IO, Any


class Malformed(ValueError):
    """Not a pickle of plain data."""


class Refused(Malformed):
    """A name that is not in the table; its text is `module.name`."""


Names = Mapping[tuple[str, str], Any]

_MARK = object()
_IGNORED = {"PROTO", "FRAME"}
_CONSTANTS: dict[str, Any] = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
_VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
_TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


def load(file: IO[bytes], names: Names, persistent: Callable[[Any], Any]) -> Any:
    """The object of one pickle; the file is left behind its end.

    Args:
      file: at the beginning of a pickle.
      names: (module, name) -> a function of plain data, a value, or `inert`.
      persistent: what a persistent identifier stands for.

    Raises:
      Refused: a name outside the table.
      Malformed: an instruction that plain data do not need, or a broken pickle.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def marked() -> list[Any]:
        place = max(i for i, value in enumerate(stack) if value is _MARK)
        values = stack[place + 1 :]
        del stack[place:]
        return values

    argument: Any
    for opcode, argument, _ in pickletools.genops(file):
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
                stack.append(tuple(marked()))
            case "EMPTY_LIST":
                stack.append([])
            case "LIST":
                stack.append(marked())
            case "EMPTY_DICT":
                stack.append({})
            case "DICT":
                values = marked()
                stack.append(dict(zip(values[::2], values[1::2], strict=True)))
            case "APPEND":
                value = stack.pop()
                stack[-1].append(value)
            case "APPENDS":
                values = marked()
                stack[-1].extend(values)
            case "SETITEM":
                value, key = stack.pop(), stack.pop()
                stack[-1][key] = value
            case "SETITEMS":
                values = marked()
                stack[-1].update(zip(values[::2], values[1::2], strict=True))
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
                    raise Malformed("calls something that is not a name")
                stack.append(function(*arguments))
            case "BUILD":
                stack.pop()  # attributes of an object: weights have none that matter
            case "BINPERSID":
                stack.append(persistent(stack.pop()))
            case "STOP":
                return stack.pop()
            case name:
                raise Malformed(f"has the instruction {name}")
    raise Malformed("has no end")


def inert(*arguments: Any) -> None:
    """Stands in the table for classes whose objects are kept beside weights and not wanted."""


def _look_up(names: Names, module: Any, name: Any) -> Any:
    if (module, name) not in names:
        raise Refused(f"{module}.{name}")
    return names[module, name]
