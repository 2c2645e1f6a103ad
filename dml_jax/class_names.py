"""Names of classes: which are the same, and which only look alike.

Names are the same if they are equal in Unicode's composed form (NFC) and without spaces and
invisible characters around them, whether they come from a folder, a table, a file of labels or the
command line. Names that differ in case, in invisible characters, in spaces, underscores, hyphens,
dashes and apostrophes of any kind, in a full stop at the end, or as numbers of one value ("1",
"1.0", "01") are near-equal: they stay different classes, and are reported.
"""

import math
import re
import unicodedata
from collections.abc import Iterable

SELECTORS = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")  # variants of a character's form
APOSTROPHES = re.compile("['`\u00b4\u02b9-\u02bd\u2018-\u201b\u2032\u2035\uff07]")
INVISIBLE = ("Cc", "Cf", "Zs", "Zl", "Zp")  # categories: control, format, spaces


def normalised(name: str) -> str:
    """The name of a class in the form NFC, without spaces and invisible characters around it and
    around folders in it."""
    return "/".join(map(_trimmed, unicodedata.normalize("NFC", name).split("/")))


def _trimmed(part: str) -> str:
    seen = [i for i, letter in enumerate(part) if not _is_invisible(letter)]
    return part[seen[0] : seen[-1] + 1] if seen else ""


def _is_invisible(letter: str) -> bool:
    return unicodedata.category(letter) in INVISIBLE or bool(SELECTORS.match(letter))


def likeness(name: str) -> str:
    """A text that near-equal names share; a minus sign and separators of digits are kept."""
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
