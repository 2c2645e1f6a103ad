"""The pages of the papers: complete, and of commands that exist."""

import importlib.util
import re
from pathlib import Path

import pytest

from benchmarks.claims import ledger
from configs import cards, published
from dml_jax import analyses
from dml_jax.commands import analyse
from dml_jax.config import files as config_files
from dml_jax.lab import plan
from tests.pages import PAGES
from tests.papers import PAPERS, absent, paper_of

pytest.importorskip("mkdocs")
from docs import generate

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("name", PAGES)
def test_every_published_number_of_a_paper_is_on_its_page(name: str) -> None:
    _, source, sections = generate.sections(PAGES[name])
    shown = {entry for section in sections for _, result in generate.printed_in(source, section) for entry in result}
    assert shown >= {entry for entry in published.entries() if entry.paper == source} != set()
    page = generate.paper_page(PAGES[name])
    assert all(f"| {entry.printed}" in page for entry in shown)


COMMANDS = [
    command
    for page in PAGES.values()
    for block in re.findall(r"^```bash\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)
    for command in block.splitlines()
]


@pytest.mark.parametrize("command", COMMANDS)
def test_the_commands_of_a_page_exist(command: str) -> None:
    """Unless they are of a paper that has been deleted."""
    words = [word for word in command.split() if word != "--protocol=paper"]
    option, _, named = words[-1].partition("=")
    name, _, variant = named.partition(":")
    if words[2].startswith("benchmarks.papers."):
        assert importlib.util.find_spec(words[2])
        code = (ROOT / f"{words[2].replace('.', '/')}.py").read_text()
        choices = [word for word in words[3:] if "/" not in word and not word.startswith("--")]
        assert all(f'"{choice}"' in code for choice in choices)
    elif words[1] == "analyse":
        options, _ = analyse.parser().read(words[2:])
        request = analyses.Request(**vars(options))
        assert not any(analyses.why_unsuitable(what, request) for what in request.what.split(","))
    elif option == "--study":
        known = config_files.run_file("--study", name).VARIANTS
        assert variant in known or any(map(absent, PAPERS))
        assert variant not in known or plan.load_study(named)
    elif not absent(paper_of(f"{name}.py") or PAPERS[0]):
        module = config_files.run_file("--config", name)
        assert variant in ("", *getattr(module, "VARIANTS", ()))


@pytest.mark.parametrize("folder", cards.folders())
def test_pages_show_the_values_that_are_not_the_authors(folder: str) -> None:
    text = generate.deviations(folder)
    for line in cards.read(folder):
        if line.state in ("differs", "not stated"):
            assert f"`{line.key}={line.value}`" in text
            assert line.source.replace("|", "\\|") in text


def test_the_page_of_claims() -> None:
    """Has every claim, and its result on each data set that has measurements of it."""
    text = generate.claims()
    for paper in ledger.papers():
        for claim in ledger.load(paper)[1]:
            assert f"| `{claim.name}`: {claim.says}" in text
    files = (ROOT / "benchmarks/claims").glob("*/*.csv")
    assert all(f"{file.stem}: " in text for file in files)
