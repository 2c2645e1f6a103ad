"""Names of classes: which are the same, and which only look alike.

Two names are the same if they are equal in Unicode's composed form (NFC) and without surrounding
spaces and invisible characters, whether they come from a folder, a table, a file of labels or the
command line. Names that differ only in case, invisible characters, spaces, underscores, hyphens,
dashes and apostrophes of any kind, a full stop at the end, or as numbers of one value ("1", "1.0",
"01") are near-equal: they stay different classes, and are reported.
"""

import math
import re
import unicodedata
from collections.abc import Iterable

SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")  # variants of a character's form
APOSTROPHES = re.compile("['`\u00b4\u02b9-\u02bd\u2018-\u201b\u2032\u2035\uff07]")
INVISIBLE = ("Cc", "Cf", "Zs", "Zl", "Zp")  # categories: control, format, spaces


def normalised(name: str) -> str:
    """The name of a class in the form NFC; it and its folders without surrounding spaces and
    invisible characters."""
    return "/".join(map(_trimmed, unicodedata.normalize("NFC", name).split("/")))


def _trimmed(part: str) -> str:
    visible = [i for i, letter in enumerate(part) if not _is_invisible(letter)]
    return part[visible[0] : visible[-1] + 1] if visible else ""


def _is_invisible(letter: str) -> bool:
    return unicodedata.category(letter) in INVISIBLE or bool(SELECTORS.match(letter))


def likeness(name: str) -> str:
    """A text that near-equal names share; it keeps a minus sign and separators of digits."""
    text = unicodedata.normalize("NFKC", SELECTORS.sub("", APOSTROPHES.sub("'", name))).casefold()
    kinds = {"Zs": " ", "Zl": " ", "Zp": " ", "Pd": "-", "Cc": "", "Cf": ""}
    text = "".join(kinds.get(unicodedata.category(letter), letter) for letter in text).strip()
    text = text.replace("\u2212", "-")
    if re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text) and math.isfinite(float(text)):
        return str(int(text) if re.fullmatch(r"[+-]?\d+", text) else _number(float(text)))
    text = re.sub(r"(?<![\d.])0+(?=\d)", "", text.rstrip(".") or text)
    apart = re.sub(r"(?<=\d)[\s_-]+(?=\d)", " ", text)
    return re.sub(r"(?<!\d)[\s_-]+|[\s_-]+(?!\d)", "", apart) or text


def _number(value: float) -> float | int:
    return int(value) if value.is_integer() else value


def near_equal(names: Iterable[str]) -> list[list[str]]:
    """The groups of two or more different names that are near-equal, each sorted."""
    groups: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        groups.setdefault(likeness(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]
