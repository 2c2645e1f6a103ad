"""The pages of the papers: complete, and of commands that exist."""

import re
from pathlib import Path

import pytest

from configs import papers, published
from dml_jax import analyses
from dml_jax.commands import analyse
from dml_jax.config import files as config_files
from dml_jax.lab import claims as ledger
from dml_jax.lab import plan
from docs import generate

ROOT = Path(__file__).parents[1]
PAPERS = papers.known()
CAPTIONS = {  # tables and figures of each paper, counted in it
    "mpn": (9, 20), "re_mpn": (3, 2), "hist": (9, 5), "crt": (10, 3), "diva": (3, 5),
}  # fmt: skip


@pytest.mark.parametrize("name", PAPERS)
def test_every_table_and_figure_has_a_place(name: str) -> None:
    found = set().union(
        *(generate.places(f"{place.name}; {place.about}") for place in PAPERS[name].places)
    )
    tables, figures = CAPTIONS[name]
    expected = {f"Table {i}" for i in range(1, tables + 1)} | {
        f"Figure {i}" for i in range(1, figures + 1)
    }
    assert {re.sub(r"[a-z]$", "", place) for place in found} == expected


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
        if words[1] == "analyse":
            options, _ = analyse.parser().read(words[2:])
            request = analyses.Request(**vars(options))
            assert not any(
                analyses.reason_against(what, request) for what in request.what.split(",")
            )
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
