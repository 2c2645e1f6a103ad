"""The pages of the papers, and a program on another page."""

import re

import pytest

from tests.papers import ROOT

PAGES = {path.stem: path.read_text() for path in sorted((ROOT / "docs/papers").glob("*.md"))}


def check_places(name: str, *, tables: int, figures: int) -> None:
    """Every table and figure, counted in the paper, is on its page."""
    pytest.importorskip("mkdocs")
    from docs import generate

    _, _, sections = generate.sections(PAGES[name])
    texts = "; ".join(section.partition("\n")[0] for section in sections)
    found = {re.sub(r"[a-z]$", "", place) for place in generate.places(texts)}
    expected = {f"Table {i + 1}" for i in range(tables)}
    assert found == expected | {f"Figure {i + 1}" for i in range(figures)}


def serving_program() -> str:
    """The program without this library in the guide to serving."""
    text = (ROOT / "docs/guides/serve.md").read_text()
    (program,) = (part for part in text.split("```") if part.startswith("python\nimport json"))
    return program.removeprefix("python\n")
