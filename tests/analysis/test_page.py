"""The report of a run whose names are hostile: its structure, its policy, what it loads, its size."""

import itertools
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dml_jax import files
from dml_jax.analysis import findings, html, run_report
from dml_jax.analysis.run_report import ANALYSES, PUBLISHED
from dml_jax.train import model_metrics
from dml_jax.train.records import workdir
from tests.analysis.page import Page
from tests.analysis.runs import Run
from tests.configurations import resolved

HOSTILE = ('<script>alert("1")</script>', "' onmouseover='alert(2)", "a&b]]>", "$x_{$", "\x1b[2J\u202e caf\udce9")
CLASSES = 100


class Photographs(Run):
    """Embeddings of noise, which compresses worst, as photographs of 100 classes with hostile names."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        labels = np.repeat(np.arange(CLASSES), 8)
        centres = rng.normal(size=(CLASSES, 8))
        names = [f"{HOSTILE[i % len(HOSTILE)]} {i}" for i in range(CLASSES)]
        ids = [f"{HOSTILE[i % len(HOSTILE)]}/{i}.jpg" for i in range(len(labels))]
        super().__init__(centres[labels] + rng.normal(size=(len(labels), 8)), labels, names, ids=ids)
        pictures = rng.integers(0, 256, (50, 40, 30, 3), np.uint8)
        read = lambda i, rng: np.repeat(np.repeat(pictures[i % 50], 4, axis=0), 4, axis=1)  # noqa: E731
        self.splits["test"] = self.splits["test"]._replace(read=read)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A work directory with the report of such a run."""
    directory = tmp_path_factory.mktemp("run")
    config, run = resolved("digits_baseline"), Photographs()
    facts = workdir.provenance(config, "x", list(map(str, range(40))), 900, (160, 120))
    files.write_json(directory / "config.json", facts)
    for name in run_report.STANDARD:
        title, find = ANALYSES[name]
        found = [finding._replace(draw=lambda figure: None) for finding in find(run, "test")]
        to = findings.STANDARD_DIRECTORY
        findings.write_analysis(directory, name, title, 60, {"": found}, to=to)
    metrics = {"recall@1": 0.5, "recall@1_stderr": 0.01, "map@r": 0.25}
    results: dict[str, Any] = {**metrics, "model": "last", "step": 60, "machine": "1 x <cpu>"}
    results |= {"protocol": "clean protocol; ties broken by lower index", "worth": ["photograph <b> on another day"]}
    results["controls"] = {"raw pixels": {**metrics, "recall@1": 0.2}, "untrained": {**metrics, "recall@1": 0.1}}
    results["timing"] = {"seconds": 3725.0, "images_per_second": 120.0, "peak_memory": 2**31}
    results["data"] = {"test": {"images": 800, "classes": 100}}
    run_report.write_page(directory, config, results)
    return directory


@pytest.fixture(scope="module")
def text(directory: Path) -> str:
    return (directory / "report.html").read_text()


def test_structure(text: str) -> None:
    """Results first; data, machine and versions come last."""
    shown = Page(text)
    figures = {attrs["id"] for attrs in shown.all("figure")}
    assert {"retrieval", "classes", "components"} <= figures
    names = [attrs["id"] for _, attrs in shown.tags if "id" in attrs]
    assert [name for name, count in Counter(names).items() if count > 1] == []
    links = [attrs["href"] or "" for attrs in shown.all("a")]
    assert {link[1:] for link in links if link.startswith("#")} <= set(names)
    assert [attrs for attrs in shown.all("img") if "alt" not in attrs] == []
    levels = [int(tag[1]) for tag, _ in shown.tags if re.fullmatch(r"h\d", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
    words, place = " ".join(" ".join(shown.texts).split()), 0
    for expected in (
        "baseline on unseen classes: Recall@1 50.0%, MAP@R 25.0% (+30.0 and +0.0 points over raw",
        "photograph <b> on another day",
        "ties broken by lower index",
        "✓",
        "worst first",
        "of the variance",
        "800 of 100 classes",
        "1:02:05 h (120 images/s)",
        "1 x <cpu>, 2.0 GiB",
    ):
        assert expected in words[place:], expected
        place = words.index(expected, place)


def test_names_are_escaped(text: str) -> None:
    shown = Page(text)
    assert shown.all("script") == []
    assert [attrs for _, attrs in shown.tags if any(name.startswith("on") for name in attrs)] == []
    titles = {(attrs.get("title") or "").partition(":")[0] for attrs in shown.all("div")}
    assert {f"{HOSTILE[0]} 0", f"{HOSTILE[1]} 1"} & titles
    assert "&lt;/<wbr>script&gt;" in text
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert r"\x1b[2J\u202e caf\udce9" in text


def test_nothing_is_loaded_or_run(directory: Path, text: str) -> None:
    shown = Page(text)
    sources = [attrs[name] or "" for _, attrs in shown.tags for name in ("src", "href") if name in attrs]
    local = [source for source in sources if not source.startswith(("data:", "#"))]
    assert local
    assert all((directory / source).is_file() for source in local)  # numbers
    (policy,) = (attrs["content"] or "" for attrs in shown.all("meta") if "http-equiv" in attrs)
    assert policy.startswith("default-src 'none';")
    assert "script-src" not in policy
    assert "url(http" not in text


def test_size_and_rows(text: str) -> None:
    """A hundred classes, in pictures that compress worse than photographs do."""
    assert 0.2e6 < len(text.encode()) < 3e6
    assert Page(text).texts.count("8") == CLASSES


def test_tables() -> None:
    """Words are aligned left, and cells of wide tables name their column, for telephones."""
    head = ("<name>", "why", "x", "y", "z")
    rows = [["<b>", "broken", "1", "2 ± 1", ""], ["b", "no image", "–", "", ""]]
    made = html.table(head, rows, "a & b", ours=1)
    assert 'aria-label="a &amp; b"><table class=wide>' in made
    assert '<th scope="col">&lt;name&gt;</th>' in made
    assert '<td class=words data-label="why">broken</td><td data-label="x">1</td>' in made
    assert "<tr class=ours><td>b</td>" in made
    assert "data-label" not in html.table(head[:2], [row[:2] for row in rows], "files")
    facts = html.table(("", "this run"), [("seed", "0"), ("versions", "jax 1.0, " * 9)], "facts")
    assert "<td class=words>0</td>" in facts


@pytest.mark.parametrize("undefined", [None, float("nan")])
def test_metrics_of_no_query(undefined: float | None) -> None:
    """Every class is of one session, in memory and as read from a file."""
    metrics = {"recall@1": undefined, "map@r": undefined}
    results = {**metrics, "controls": {"raw pixels": metrics}, "protocol": ""}
    words = run_report.lead(resolved("digits_baseline"), results)
    assert words.startswith("No test image has a relevant image")


def test_the_page_leads_with_the_gain_and_the_choice() -> None:
    """Over published weights, even if another control is better; then all candidates, with what to
    type to use another one."""
    controls = {"colour histogram": {"recall@1": 0.6, "map@r": 0.1}, PUBLISHED: {"recall@1": 0.4, "map@r": 0.3}}
    results = {"recall@1": 0.5, "map@r": 0.35, "controls": controls, "protocol": "clean"}
    config = replace(resolved("digits_baseline"), paper={})
    words = run_report.lead(config, results)
    assert f"MAP@R 35.0% (+10.0 and +5.0 points over {PUBLISHED})" in words
    assert "the control 'colour histogram' is better: Recall@1 60.0%, MAP@R 10.0%." in words
    trained = results | {"protocol": f"{model_metrics.TRAINED_ON}: clean"}
    assert "points over" not in run_report.lead(config, trained)
    training = {
        "published": {"recall@1": 0.7, "map@r": 0.2, "gain": 0.0, "gain_stderr": 0.0},
        "halfway": {"recall@1": 0.75, "map@r": 0.26, "gain": 0.055, "gain_stderr": 0.012},
        "trained": {"recall@1": 0.74, "map@r": 0.27, "gain": 0.054, "gain_stderr": 0.012},
    }
    unseen = {
        "published": {"recall@1": 0.4, "map@r": 0.3},
        "halfway": {"recall@1": 0.5, "map@r": 0.35},
        "trained": {"recall@1": 0.51, "map@r": 0.38},
    }
    choice = {"kept": "halfway", "classes": 50, "training": training, "unseen": unseen}
    results |= {"model": "folds", "step": 300, "choice": choice}
    other = "another candidate would be better: trained network, Recall@1 51.0%, MAP@R 38.0%."
    assert other in run_report.lead(config, results)
    page = run_report._results(config, results)
    for cell in ("75.0", "26.0", "38.0", "+5.5 ± 1.2", "reported</td>", "trained</td>", "the 50"):
        assert cell in page
    assert f"<td>{config.method.name}, mean of layer and trained</td>" in page
    assert "<tr class=ours><td>mean of layer and trained (selected)</td>" in page


def test_distance_from_a_published_interval() -> None:
    """A paper prints 67.1 ± 0.69 %: with 0.92 of ours, 1.15 together. Another one prints no ±."""
    results = {"recall@1": 0.6825, "recall@1_stderr": 0.0092, "model": "test", "step": 1}
    printed = {"a": {"recall@1": 0.671, "recall@1_stderr": 0.0069}, "b": {"recall@1": 0.671}}
    config = replace(resolved("digits_baseline"), paper={"clean": printed})
    names = [name for name, _ in run_report.rows(config, results)]
    assert names[1:] == ["a (ours differs by +1.0 combined standard errors)", "b"]
