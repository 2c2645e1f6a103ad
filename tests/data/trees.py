"""Trees of files, written as text: `{train,test}/{ash,elm}` is four folders of two images each."""

import itertools
import re
from pathlib import Path

SHORT = {"TREES": "{ash,elm,fir,oak,yew}", "FOUR": "{ash,elm,oak,yew}"}


def expanded(pattern: str) -> list[str]:
    """The texts that a pattern with alternatives in braces stands for."""
    parts = re.split(r"\{(.*?)\}", pattern)
    choices = [part.split(",") if i % 2 else [part] for i, part in enumerate(parts)]
    return ["".join(chosen) for chosen in itertools.product(*choices)]


def write(root: Path, token: str) -> None:
    r"""Writes what a token stands for: files (names with a suffix), folders of two empty images, or
    a text file as `name:text`, with `\n` and `\uXXXX` for special characters."""
    pattern, colon, text = token.partition(":")
    for short, names in SHORT.items():
        pattern = pattern.replace(short, names)
    pattern, text = (re.sub(r"\\u(\w{4})", lambda m: chr(int(m[1], 16)), t) for t in (pattern, text))
    for name in expanded(pattern):
        is_file = colon or re.search(r"\.[a-zA-Z]\w{1,6}$", name)
        for path in [root / name] if is_file else [root / name / f"{i}.jpg" for i in (0, 1)]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text.replace("\\n", "\n"), encoding="utf-8")
