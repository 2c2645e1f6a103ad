"""The pages of the papers: complete, and of commands that exist."""

import importlib.util
import re
from pathlib import Path

import pytest

from benchmarks.claims import ledger
from configs import papers, published
from dml_jax import analyses
from dml_jax.commands import analyse
from dml_jax.config import files as config_files
from dml_jax.lab import plan
from docs import generate

ROOT = Path(__file__).parents[1]
PAPERS = papers.known()


def check_places(name: str, *, tables: int, figures: int) -> None:
    """Every table and figure, counted in the paper, is on its page."""
    texts = " ".join(f"{place.name}; {place.about};" for place in PAPERS[name].places)
    found = {re.sub(r"[a-z]$", "", place) for place in generate.places(texts)}
    expected = {f"Table {i + 1}" for i in range(tables)}
    assert found == expected | {f"Figure {i + 1}" for i in range(figures)}


@pytest.mark.parametrize("name", PAPERS)
def test_every_published_number_of_a_paper_is_on_its_page(name: str) -> None:
    paper = PAPERS[name]
    shown = {
        entry
        for place in paper.places
        for _, result in generate.printed_in(paper, place)
        for entry in result
    }
    assert shown >= {entry for entry in published.entries() if entry.paper == paper.source}
    page = generate.paper_page(paper)
    assert all(f"| {entry.printed}" in page for entry in shown)


@pytest.mark.parametrize("name", PAPERS)
def test_the_commands_of_a_page_exist(name: str) -> None:
    for command in (command for place in PAPERS[name].places for command in place.commands):
        words = [word for word in command.split() if word != "--protocol=paper"]
        option = words[-1]
        if words[0] == "python" and words[2].startswith("benchmarks.papers."):
            assert importlib.util.find_spec(words[2])
        elif words[1] == "analyse":
            options, _ = analyse.parser().read(words[2:])
            request = analyses.Request(**vars(options))
            assert not any(
                analyses.reason_against(what, request) for what in request.what.split(",")
            )
        elif words[2].startswith("benchmarks.papers."):
            file = ROOT / f"{words[2].replace('.', '/')}.py"
            assert f'"{option}"' in file.read_text()
        elif option.startswith("--study="):
            study = option.removeprefix("--study=")
            assert plan.load(study)
        else:
            file, _, variant = option.removeprefix("--config=").partition(":")
            module = config_files.run_file("--config", file)
            assert variant in ("", *getattr(module, "VARIANTS", ()))


def test_the_page_of_claims() -> None:
    """Has every claim, and a verdict on each that has a study on a data set with measurements."""
    text = generate.claims() + generate.verdict_tables()
    files = sorted((ROOT / "benchmarks/claims").glob("*/*.csv"))
    for paper in ledger.papers():
        for claim in ledger.load(paper)[1]:
            assert f"- `{claim.name}`: {claim.says}" in text
    assert all(f", on {file.stem}\n" in text for file in files)
