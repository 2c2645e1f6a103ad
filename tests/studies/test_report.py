"""Tables over runs: numbers against independent computations, ranks, groups, formats; no training."""

import csv
import io
import math
import os
import re
from dataclasses import asdict, replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes, urljoin, urlsplit

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from dml_jax.commands import report
from dml_jax.errors import CheckpointError, ConfigError, printable
from dml_jax.studies import group_tables, outcomes, plan, study_page, summary
from dml_jax.studies.definition import Row, Study
from dml_jax.studies.plan import Settings
from dml_jax.train.records import timing
from tests.studies.runs import PROTOCOL, hits, write_run
from tests.test_configs import resolved

ROOT = Path(__file__).parents[2]


def config(seed: int = 0, **method: Any) -> dict[str, Any]:
    values = asdict(resolved("digits_hist"))
    values["method"] |= method
    values["seed"] = seed
    return values


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Three seeds of two values of tau, and one seed of a third."""
    for tau, share in ((8.0, 0.5), (16.0, 0.6)):
        for seed in range(3):
            run = hits(share + 0.01 * seed, seed=seed)
            write_run(tmp_path / f"tau{tau:.0f}-seed{seed}", run, config=config(seed, tau=tau), nmi=0.7)
    write_run(tmp_path / "tau32-seed0", hits(0.55, seed=5), config=config(0, tau=32.0), nmi=0.65)
    return tmp_path


def table_of(directory: Path, names: str = "tau*") -> group_tables.Table:
    found = summary.of_runs(sorted(directory.glob(names)), "recall@1")
    (made,) = summary.parts(found)
    return made[0]


def column(table: group_tables.Table, heading: str) -> dict[str, group_tables.Cell]:
    place = table.head.index(heading)
    return {row[0].text: row[place] for row in table.rows}


def test_means_and_ranks(directory: Path) -> None:
    """Runs that differ in the seed only are one row."""
    table = table_of(directory)
    recalls = {
        tau: [hits(share + 0.01 * seed, seed=seed).mean() for seed in range(3)] for tau, share in ((8, 0.5), (16, 0.6))
    }
    found = column(table, "R@1")
    assert {name: cell.text for name, cell in column(table, "seeds").items()} == {
        "tau8": "3",
        "tau16": "3",
        "tau32": "1",
    }
    for tau, values in recalls.items():
        assert found[f"tau{tau}"].text == f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f}"
    assert found["tau32"].text == f"{100 * hits(0.55, seed=5).mean():.1f}"
    assert {name: cell.rank for name, cell in found.items()} == {"tau16": 1, "tau32": 2, "tau8": 0}
    assert {name: cell.rank for name, cell in column(table, "NMI").items()} == {"tau8": 1, "tau16": 1, "tau32": 2}
    assert column(table, "time")["tau8"].text == "60 s"
    assert column(table, "memory")["tau8"].text == "1024 MiB"


def test_without_published_numbers(tmp_path: Path) -> None:
    """A source without an entry for a row, as of a variant of a study, is not one."""
    plan.write_facts(
        tmp_path, "name", Study("A title", rows=(Row("x", reported={"paper": {}}),)), Settings(tmp_path),
        {"trials": [{"name": "x-seed0", "row": "x", "seed": 0}]},
    )  # fmt: skip
    write_run(tmp_path / "x-seed0", hits(0.5), config=config(), **{"macro_recall@1": 0.4})
    (made,) = summary.parts(summary.of_study(tmp_path))
    assert not any("ublished" in note for note in made[0].notes)
    (axes,) = study_page.plot_rows(made[1], made[0], "recall@1").axes
    assert axes.get_legend() is None


def test_notes_on_the_selection(tmp_path: Path) -> None:
    """Rows of refined embeddings and ensembles are of the models that they are made from."""
    published = config() | {"paper": {"recall@1": 0.703}}
    after = {"reciprocal": {"recall@1": 0.66, "map@r": 0.3}}
    write_run(tmp_path / "a-0", hits(0.5), config=published, model="test", refined=after)
    write_run(tmp_path / "ensemble", hits(0.6), model="test")
    optimistic = "Models selected on the test classes, so that their results are optimistic: "
    notes = " ".join(table_of(tmp_path, "*").notes)
    assert f"{optimistic}all rows." in notes
    assert "Published numbers are usually" not in notes
    write_run(tmp_path / "b-0", hits(0.5), config=config(tau=2.0))
    notes = " ".join(table_of(tmp_path, "*").notes)
    assert f"{optimistic}a, ensemble." in notes
    assert "epoch that is best on the test set; the other rows are not." in notes


def test_undefined_metrics(tmp_path: Path) -> None:
    """Are null in JSON; other runs and rows still have a mean and a best."""
    metric = "macro_recall@1"
    first = config() | {"paper": {}}
    write_run(tmp_path / "a-0", hits(0.5), config=first, nmi=None, refined={"ward": {"recall@1": 0.9, metric: None}},
              **{metric: 0.5})  # fmt: skip
    write_run(tmp_path / "b-0", hits(0.6), config=config(tau=2.0), nmi=0.5, **{metric: 0.4})
    ((table, group),) = summary.parts(summary.of_runs(sorted(tmp_path.iterdir()), metric))
    found = {name: cell.text for name, cell in column(table, "R@1 per class").items()}
    assert found == {"a": "50.0", "a + ward": "–", "b": "40.0"}
    assert {name: cell.text for name, cell in column(table, "NMI").items()} == {"a": "–", "a + ward": "–", "b": "50.0"}
    assert not any(note.startswith("p: ") for note in table.notes)  # as no p is known
    study_page.plot_rows(group, table, metric)


def test_significance(directory: Path) -> None:
    """As SciPy's paired and Welch's t-tests."""
    table = table_of(directory)
    first, best = (
        np.array([hits(share + 0.01 * seed, seed=seed) for seed in range(3)], dtype=float) for share in (0.5, 0.6)
    )
    queries, seeds = column(table, "p queries"), column(table, "p seeds")
    paired = stats.ttest_rel(first.mean(axis=0), best.mean(axis=0)).pvalue
    welch = stats.ttest_ind(first.mean(axis=1), best.mean(axis=1), equal_var=False).pvalue
    assert queries["tau8"].value == pytest.approx(paired, rel=0.02, abs=1e-6)
    assert seeds["tau8"].value == pytest.approx(welch, rel=1e-6)
    assert any(note.startswith("p: ") for note in table.notes)
    assert math.isnan(seeds["tau32"].value)
    assert queries["tau16"].text == ""
    alike = [outcomes.read_run(directory / "tau8-seed0")]
    assert outcomes.query_test(alike, alike, "recall@1") == 1.0
    ((_, group),) = summary.parts(summary.of_runs(sorted(directory.glob("tau*")), "recall@1"))
    between = group_tables.pairs(table, group, "recall@1")
    assert between
    third = stats.ttest_rel(first.mean(axis=0), hits(0.55, seed=5).astype(float)).pvalue
    assert column(between, "tau32")["tau8"].value == pytest.approx(third, rel=0.02)
    assert column(between, "tau8")["tau32"].value == column(between, "tau32")["tau8"].value
    assert [column(between, name)[name].text for name in between.head[1:]] == ["", "", ""]


def test_rows_without_learning(tmp_path: Path) -> None:
    """Stand above the others, once; controls that depend on the network are not among them."""
    controls = {name: {"recall@1": 0.2, "map@r": 0.1} for name in ("colour histogram", "untrained")}
    for name in ("a", "b"):
        write_run(tmp_path / f"{name}-0", hits(0.5), config=config(name=name), controls=controls)
    table, half = table_of(tmp_path, "*"), f"{100 * hits(0.5).mean():.1f}"
    found = {name: cell.text for name, cell in column(table, "R@1").items()}
    assert found == {"colour histogram": "20.0", "a": half, "b": half}
    assert column(table, "time")["colour histogram"].text == ""
    assert column(table, "p queries")["colour histogram"].text == ""


def test_small_differences_are_not_significant(tmp_path: Path) -> None:
    for name, seed in (("a-0", 1), ("b-0", 2)):
        write_run(tmp_path / name, hits(0.5, 200, seed), config=config(0, tau=float(seed)))
    one, other = (hits(0.5, 200, seed).astype(float) for seed in (1, 2))
    p = outcomes.query_test(*([outcomes.read_run(tmp_path / name)] for name in ("a-0", "b-0")), "recall@1")
    assert p == pytest.approx(stats.ttest_rel(one, other).pvalue, rel=0.02)
    assert p > 0.05


@pytest.mark.parametrize("difference", [{"protocol": "paper protocol"}, {"labels": "of other images"}])
def test_runs_that_cannot_be_compared(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], difference: dict[str, str]
) -> None:
    """Are in tables of their own, each with its best row and its own note."""
    write_run(tmp_path / "a-0", hits(0.5), config=config(tau=1.0))
    write_run(tmp_path / "b-0", hits(0.9), config=config(tau=2.0), **difference)
    write_run(tmp_path / "c-0", hits(0.4), config=config(tau=3.0))
    report.execute([*map(str, sorted(tmp_path.iterdir())), f"--output={tmp_path / 'report'}"])
    assert "2 tables: the runs have different test images or protocols" in capsys.readouterr().out
    text = (tmp_path / "report" / "report.md").read_text()
    first, second = text.split("## ")[1:]
    assert f"| a | 1 | **{100 * hits(0.5).mean():.1f}** |" in first
    assert "| b |" not in first
    assert "| b | 1 |" in second
    parts = (tmp_path / "report" / "report.csv").read_text().split("\n\n")
    titles = [{row["table"] for row in csv.DictReader(part.splitlines())} for part in parts]
    assert titles == [{first.splitlines()[0]}, {second.splitlines()[0]}]


def test_published_numbers(tmp_path: Path) -> None:
    """Those that the study states, else the configuration's; also of refined embeddings."""
    weights = {"recall@1": 0.605}
    study = Study(
        "A title",
        rows=(
            Row("x", refined={"reciprocal": {"paper": {"recall@1": 0.708}}}, reported={"authors' weights": weights}),
            Row("y"),
        ),
    )
    facts = {"trials": [{"name": f"{row}-seed0", "row": row, "seed": 0} for row in "xyz"[:2]]}
    plan.write_facts(tmp_path, "name", study, Settings(tmp_path), facts)
    after = {"recall@1": 0.66, "map@r": 0.3}
    published = config() | {"paper": {"recall@1": 0.703}}
    write_run(
        tmp_path / "x-seed0", hits(0.5), config=published, refined={"reciprocal": after, "ward": {"problem": "no"}},
        **{"macro_recall@1": 0.4},
    )  # fmt: skip
    (made,) = summary.parts(summary.of_study(tmp_path))
    (axes,) = study_page.plot_rows(made[1], made[0], "recall@1").axes
    assert set(axes.get_legend_handles_labels()[1]) == {"these runs", "paper", "authors' weights"}
    assert [row[0].text for row in made[0].rows] == ["x", "x + reciprocal"]
    assert {n: c.text for n, c in column(made[0], "R@1 paper").items()} == {"x": "70.3", "x + reciprocal": "70.8"}
    assert column(made[0], "R@1 authors' weights")["x"].text == "60.5"
    assert column(made[0], "R@1")["x + reciprocal"].rank == 1
    assert "Published numbers are usually of the epoch that is best on the test set" in " ".join(made[0].notes)
    assert summary.of_study(tmp_path).failed == ["y-seed0: not finished"]


class Columns(HTMLParser):
    """Counts the cells of each row and collects links and images."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[int] = []
        self.links: list[str] = []
        self.images = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "tr":
            self.rows.append(0)
        elif tag in ("td", "th"):
            self.rows[-1] += 1
        elif tag == "a":
            self.links.append(dict(attrs)["href"] or "")
        self.images += tag == "img"


def test_formats(directory: Path) -> None:
    """The same numbers in Markdown, LaTeX, CSV and HTML."""
    output = directory / "report"
    report.execute([*map(str, sorted(directory.glob("tau*"))), f"--output={output}"])
    table = table_of(directory)
    best = f"{100 * np.mean([hits(0.6 + 0.01 * s, seed=s).mean() for s in range(3)]):.1f}"
    lines = (output / "report.md").read_text().split("## ")[1].splitlines()
    assert len({line.count("|") for line in lines if line.startswith("|")}) == 1
    assert any(f"**{best} ±" in line for line in lines)
    tex = (output / "report.tex").read_text()
    assert rf"\textbf{{{best} $\pm$" in tex
    assert tex.count(r" \\") == 4 + 4  # the table, and the p-values between its rows
    with (output / "report.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["R@1 (value)"]) for row in rows] == [cell.value for cell in column(table, "R@1").values()]
    parser = Columns()
    parser.feed((output / "report.html").read_text())
    assert parser.rows == [len(table.head)] * 4 + [4] * 4
    assert parser.images == 2
    assert len(parser.links) == 7
    assert all((output / link).exists() for link in parser.links)


def test_special_characters() -> None:
    cells = (group_tables.Cell("a_b & <c> | 50% [x]"), group_tables.Cell("<0.001", 0.0))
    table = group_tables.Table("T_1", ("n",), ("", "p"), (cells,), (0, 1))
    assert r"a\_b \& $<$c$>$ | 50\%" in group_tables.latex(table)
    assert r"| a_b & <c> \| 50% [x] |" in group_tables.markdown(table)
    cells = (group_tables.Cell("[/] ~/a --b ---c\\", rank=1),)
    table = group_tables.Table("T [/bold]", (), ("[/x] p",), (cells,), (0,))
    assert r"\textbf{[/] \textasciitilde{}/a -{}-b -{}-{}-c\textbackslash{}}" in group_tables.latex(table)
    console = Console(file=io.StringIO(), width=80)
    group_tables.print_table(table, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(text in printed for text in ("T [/bold]", "[/x] p", "[/] ~/a --b ---c\\"))


@pytest.mark.parametrize("name", ["u$x^$", "[red]", "caf\udce9\x1b", "x" * 200, "50%41#a?b&c", "javascript:0"])
def test_names_of_directories(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Anything that a file system allows."""
    write_run(tmp_path / f"{name}-0", hits(0.5), config=config(tau=1.0))
    write_run(tmp_path / f"{name}b-0", hits(0.4), config=config(tau=2.0))
    runs = [str(path) for path in sorted(tmp_path.iterdir())]
    report.execute([*runs, f"--output={tmp_path / 'report'}"])
    assert f"| {printable(name)} | 1 |" in (tmp_path / "report" / "report.md").read_text()
    parser = Columns()
    parser.feed((tmp_path / "report" / "report.html").read_text())
    addresses = [urlsplit(urljoin("file:///report/report.html", link)) for link in parser.links]
    found = [os.path.normpath(f"{tmp_path}{os.fsdecode(unquote_to_bytes(address.path))}") for address in addresses]
    assert sorted(found) == [f"{run}/results.json" for run in runs]
    assert not any(address.query or address.fragment for address in addresses)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ([], ConfigError, "DIRECTORY: missing"),
        (["no/such"], ConfigError, "no/such: there is no such directory"),
        (["."], CheckpointError, r"\.: holds no finished run"),
        ([".", "--output=README.md"], ConfigError, "--output=README.md: is a file"),
        ([".", "--config.seed=1"], ConfigError, "dml-jax report has no configuration"),
    ],
)
def test_invalid_command_lines(
    arguments: list[str], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    with pytest.raises(error, match=message):
        report.execute(arguments)


@pytest.mark.parametrize(
    "metric",
    ["recall@3", "recall@1_stderr", "protocol", "geometry", "equal_error_rate", "density", "r_precision", "steps"],
)
def test_unknown_metric(tmp_path: Path, metric: str) -> None:
    """Only those that are numbers and the better the higher."""
    others = {"geometry": {"density": 1.0}, "equal_error_rate": 0.1, "density": 0.3, "r_precision": None}
    write_run(tmp_path / "a-0", hits(0.5), config=config(), **others)
    words = rf"--metric={metric}: .*a-0 has no such result to compare by; it has recall@1, map@r$"
    with pytest.raises(ConfigError, match=words):
        report.execute([str(tmp_path / "a-0"), f"--metric={metric}"])


def test_timing() -> None:
    lines = [
        {"step": 1, "images_per_second": 0.0, "peak_memory": 7},
        {"step": 11, "images_per_second": 100.0, "peak_memory": 9},
        {"step": 21, "images_per_second": 50.0},
    ]
    assert timing.summary(lines, 20) == {"seconds": 6.0, "images_per_second": 75.0, "peak_memory": 9}
    assert timing.summary([], 20) == timing.summary(lines[:1], 20) == {}


def test_names_of_rows(tmp_path: Path) -> None:
    """Runs of other configurations in directories of similar names are rows of their own."""
    for name, seed, tau in (("run-0", 0, 1.0), ("run-1", 0, 2.0), ("again-1", 1, 1.0)):
        write_run(tmp_path / name, hits(0.5), config=config(seed, tau=tau))
    write_run(tmp_path / "ensemble2", hits(0.5))
    found = summary.of_runs([tmp_path / n for n in ("run-0", "run-1", "again-1", "ensemble2")], "recall@1")
    assert [run.row for run in found.runs] == ["run", "run-1", "run", "ensemble2"]
    assert re.search("clean", PROTOCOL)


def test_runs_of_a_row(tmp_path: Path) -> None:
    """A run given twice is one seed; runs of another length are another row, as results depend on it."""
    write_run(tmp_path / "short-0", hits(0.5), config=config(0))
    write_run(tmp_path / "short-1", hits(0.5, seed=1), config=config(1))
    write_run(tmp_path / "long-0", hits(0.6), config=config(0), steps=200)
    names = ("short-0", "short-1", "short-0", "long-0")
    found = summary.of_runs([tmp_path / name for name in names], "recall@1")
    assert [run.row for run in found.runs] == ["short", "short", "long"]


def test_geometry_has_columns_and_a_figure(tmp_path: Path) -> None:
    for name, decay in (("a-0", 0.27), ("b-0", 0.19)):
        geometry = {"density": 0.5, "spectral_decay": decay, "singular_values": [0.7, 0.2, 0.1], "task": {"density": 1}}
        write_run(tmp_path / name, hits(0.5), config=config(tau=decay), geometry=geometry)
    ((table, group),) = summary.parts(summary.of_runs(sorted(tmp_path.iterdir()), "recall@1"))
    assert {name: cell.text for name, cell in column(table, "spectral decay").items()} == {"a": "0.270", "b": "0.190"}
    published = group_tables.build("t", group, "recall@1", {"a": {"paper": {"density": 0.72}}})
    for made, expected in ((table, {"MAP@R"}), (published, {"density", "density paper"})):
        assert {made.head[i] for i in made.narrow} & {"MAP@R", "density", "density paper", "uniformity"} == expected
    figure = study_page.plot_spectra(group)
    assert figure is not None
    lines = figure.axes[0].get_lines()
    assert [list(line.get_ydata()) for line in lines] == [[0.7, 0.2, 0.1]] * 2


def test_long_headings_leave_room_for_names_and_numbers(directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = table_of(directory)
    table = table._replace(head=tuple(f"{heading} of the authors" for heading in table.head))
    group_tables.print_table(table, Console(width=100))
    printed = capsys.readouterr().out
    assert all(row[i].text in printed for row in table.rows for i in table.narrow)


def test_grids_have_a_heat_map(tmp_path: Path) -> None:
    for number, (layers, heads) in enumerate(((1, 2), (1, 4), (2, 2))):
        name = f"layers={layers} heads={heads}"
        write_run(tmp_path / name, hits(0.1 * (number + 1)), config=config(tau=float(number)))
    runs = [replace(outcomes.read_run(path), row=path.name) for path in sorted(tmp_path.iterdir())]
    (group,) = outcomes.groups(runs)
    figure = study_page.plot_grid(group, "recall@1")
    assert figure is not None
    axes = figure.axes[0]
    shown = np.ma.filled(axes.images[0].get_array(), np.nan)
    expected = [[100 * float(hits(share).mean()) for share in (0.1, 0.2)], [100 * float(hits(0.3).mean()), np.nan]]
    np.testing.assert_allclose(shown, expected)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("heads", "layers")
    group.rows["another"] = group.rows.pop("layers=1 heads=2")
    assert study_page.plot_grid(group, "recall@1") is None


def test_published_digits(tmp_path: Path) -> None:
    """Those of the source, however many there are: 75.95 is not 75.9, and 83.2 beside it is 83.20."""
    beside = {"paper": {"clean": {"paper": {"recall@1": 0.7595, "map@r": 0.832}}}}
    write_run(tmp_path / "a-0", hits(0.5), config=config() | beside)
    write_run(tmp_path / "b-0", hits(0.5), config=config(tau=2.0) | {"paper": {"clean": {"paper": {"recall@1": 0.7}}}})
    ((table, _),) = summary.parts(summary.of_runs(sorted(tmp_path.iterdir()), "recall@1"))
    assert {name: cell.text for name, cell in column(table, "R@1 paper").items()} == {"a": "75.95", "b": "70.0"}
    assert column(table, "MAP@R paper")["a"].text == "83.20"
