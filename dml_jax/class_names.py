"""Names of classes: which are the same, and which only look alike.

Names are the same if they are equal without surrounding spaces and in Unicode's composed form
(NFC), whether they come from a folder, a table, a file of labels or the command line. Names that
differ in case, in spaces, underscores and hyphens, or as numbers of one value ("1", "1.0", "01")
are near-equal: they stay different classes, and are reported.
"""

import re
import unicodedata
from collections.abc import Iterable

NUMBER = re.compile(r"([+-]?)0*(\d+)(?:\.(\d*?)0*)?")


def normalised(name: str) -> str:
    """The name of a class in the form NFC, without spaces around it and around folders in it."""
    parts = (part.strip() for part in unicodedata.normalize("NFC", name).split("/"))
    return "/".join(parts)


def likeness(name: str) -> str:
    """A text that near-equal names share; a minus sign and separators of digits are kept."""
    text = unicodedata.normalize("NFKC", name).casefold().strip()
    if number := NUMBER.fullmatch(text):
        return f"{number[1].strip('+')}{number[2]}.{number[3] or ''}"
    apart = re.sub(r"(?<=\d)[\s_-]+(?=\d)", " ", text)
    return re.sub(r"(?<!\d)[\s_-]+|[\s_-]+(?!\d)", "", apart) or text


def near_equal(names: Iterable[str]) -> list[list[str]]:
    """The groups of two or more different names that are near-equal, each sorted."""
    groups: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        groups.setdefault(likeness(name), []).append(name)
    return [group for group in groups.values() if len(group) > 1]
