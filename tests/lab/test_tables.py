"""Tables over runs: numbers against independent computations, ranks, groups, formats; no training."""

import csv
import io
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from dml_jax.analysis import text_tables
from dml_jax.commands import study
from dml_jax.errors import ConfigError
from dml_jax.evaluation import protocol
from dml_jax.lab import outcomes, plan, runner, tables
from dml_jax.lab.definition import Row, Study
from dml_jax.lab.plan import Settings, Trial
from tests.configurations import resolved
from tests.lab.runs import PROTOCOL, hits, write_run

ROOT = Path(__file__).parents[2]


def config(seed: int = 0, **method: Any) -> dict[str, Any]:
    values = asdict(resolved("digits_baseline", "proxy_anchor"))
    values["method"]["proxy_anchor"] |= method
    values["seed"] = seed
    return values


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Three seeds of two values of alpha, and one seed of a third."""
    for alpha, share in ((8.0, 0.5), (16.0, 0.6)):
        for seed in range(3):
            run = hits(share + 0.01 * seed, seed=seed)
            write_run(tmp_path / f"alpha{alpha:.0f}-seed{seed}", run, config=config(seed, alpha=alpha), nmi=0.7)
    write_run(tmp_path / "alpha32-seed0", hits(0.55, seed=5), config=config(0, alpha=32.0), nmi=0.65)
    return tmp_path


def table_of(directory: Path, names: str = "alpha*") -> text_tables.Table:
    return tables.table(tables.summarise_runs(sorted(directory.glob(names)), "recall@1"))[0]


def of_study(root: Path) -> tables.Summary:
    return tables.summarise_study(root, plan.read_facts(root) or {})


def column(table: text_tables.Table, heading: str) -> dict[str, str]:
    names, *_ = table.columns.values()
    return dict(zip(names, table.columns[heading], strict=True))


def best(table: text_tables.Table, heading: str) -> list[str]:
    names, *_ = table.columns.values()
    return [name for row, name in enumerate(names) if (heading, row) in table.best]


def test_means_and_ranks(directory: Path) -> None:
    """Runs that differ in the seed only are one row."""
    table = table_of(directory)
    recalls = {
        alpha: [hits(share + 0.01 * seed, seed=seed).mean() for seed in range(3)]
        for alpha, share in ((8, 0.5), (16, 0.6))
    }
    found = column(table, "R@1")
    assert column(table, "seeds") == {"alpha8": "3", "alpha16": "3", "alpha32": "1"}
    for alpha, values in recalls.items():
        assert found[f"alpha{alpha}"] == f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f}"
    assert found["alpha32"] == f"{100 * hits(0.55, seed=5).mean():.1f}"
    assert best(table, "R@1") == ["alpha16"]
    assert best(table, "NMI") == ["alpha16", "alpha8"]
    assert column(table, "time")["alpha8"] == "60 s"


def test_notes_on_the_selection(tmp_path: Path) -> None:
    """Rows of refined embeddings and ensembles are of the models that they are made from."""
    published = config() | {"paper": {"clean": {"paper": {"recall@1": 0.703}}}}
    after = {"reciprocal": {"recall@1": 0.66, "map@r": 0.3}}
    write_run(tmp_path / "a-0", hits(0.5), config=published, model="test", refined=after)
    write_run(tmp_path / "ensemble", hits(0.6), model="test")
    optimistic = "Models were selected on the test classes, so their results are optimistic: "
    notes = " ".join(table_of(tmp_path, "*").notes)
    assert f"{optimistic}all rows." in notes
    assert "Published numbers usually" not in notes
    write_run(tmp_path / "b-0", hits(0.5), config=config(alpha=2.0))
    notes = " ".join(table_of(tmp_path, "*").notes)
    assert f"{optimistic}a, ensemble." in notes
    assert "best epoch on the test set; those of the other rows do not." in notes


def test_undefined_metrics(tmp_path: Path) -> None:
    """Are null in JSON; other runs and rows still have a mean and a best."""
    metric = "macro_recall@1"
    first = config() | {"paper": {}}
    refined = {"ward": {"recall@1": 0.9, metric: None}}
    write_run(tmp_path / "a-0", hits(0.5), config=first, nmi=None, refined=refined, **{metric: 0.5})
    write_run(tmp_path / "b-0", hits(0.6), config=config(alpha=2.0), nmi=0.5, **{metric: 0.4})
    table, _ = tables.table(tables.summarise_runs(sorted(tmp_path.iterdir()), metric))
    found = column(table, "R@1 per class")
    assert found == {"a": "50.0", "a + ward": "–", "b": "40.0"}
    assert column(table, "NMI") == {"a": "–", "a + ward": "–", "b": "50.0"}
    assert not any(note.startswith("p: ") for note in table.notes)  # as no p is known


def test_significance(directory: Path) -> None:
    """As SciPy's Welch test over seeds."""
    table = table_of(directory)
    first, second = ([hits(share + 0.01 * seed, seed=seed).mean() for seed in range(3)] for share in (0.5, 0.6))
    found = column(table, "p")
    assert found["alpha8"] == f"{stats.ttest_ind(first, second, equal_var=False).pvalue:.3f}"
    assert any(note.startswith("p: ") for note in table.notes)
    assert found["alpha32"] == found["alpha16"] == ""


def test_rows_without_results_have_a_reason_in_every_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Failed trials, and test-time batches whose clustering failed."""
    rows = (Row("x"), Row("y"))
    made = [Trial(f"{row.name}-seed0", row.name, 0, tmp_path / f"{row.name}-seed0", None) for row in rows]
    plan.create_study("name", Study("T", rows=rows), Settings(tmp_path), made)
    refined = {"birch": {"problem": "birch found one cluster"}, "ward": {"recall@1": 0.6, "map@r": 0.3}}
    write_run(tmp_path / "x-seed0", hits(0.5), config=config(), refined=refined)
    runner.trial_file(tmp_path, "y-seed0", "log").write_text("starts\nerror: training diverged\n")
    study.execute(["--runs", str(tmp_path)])
    printed = capsys.readouterr().out
    texts = [printed, (tmp_path / "report.md").read_text(), (tmp_path / "report.tex").read_text()]
    for text in texts:
        lines = [line.replace("│", "|").replace("&", "|").strip("| ") for line in text.splitlines()]
        for row in ("x + birch", "y"):
            (line,) = (line for line in lines if line.split("|")[0].strip() == row)
            assert {cell.strip(" \\") for cell in line.split("|")[1:]} <= {"–", "--", ""}
        assert "birch found one cluster" in text
        assert "training diverged" in text
    with (tmp_path / "report.csv").open() as file:
        assert [row["problem"] for row in csv.DictReader(file)] == ["", "training diverged"]


def test_published_numbers(tmp_path: Path) -> None:
    """Those that the study states, else the configuration's; also of refined embeddings."""
    weights = {"recall@1": 0.605}
    x = Row("x", refined={"reciprocal": {"paper": {"recall@1": 0.708}}}, reported={"authors' weights": weights})
    published_rows = Study("A title", rows=(x, Row("y")))
    made = [Trial(f"{row}-seed0", row, 0, tmp_path / f"{row}-seed0", None) for row in "xy"]
    plan.create_study("name", published_rows, Settings(tmp_path), made)
    after = {"recall@1": 0.66, "map@r": 0.3}
    # As many digits as the source has: 75.95 is not 75.9, and 83.2 beside it is 83.20.
    printed = {"recall@1": 0.7595, "map@r": 0.832, "map@r_stderr": 0.0059}
    published = config() | {"paper": {"clean": {"paper": printed}}}
    refined = {"reciprocal": after, "ward": {"problem": "no"}}
    write_run(tmp_path / "x-seed0", hits(0.5), config=published, refined=refined)
    made, _ = tables.table(of_study(tmp_path))
    expected = {"x": "75.95", "x + reciprocal": "70.8", "x + ward": "", "y": ""}
    assert column(made, "R@1 paper") == expected
    assert column(made, "MAP@R paper")["x"] == "83.20 ± 0.59"
    assert column(made, "R@1 authors' weights")["x"] == "60.5"
    assert best(made, "R@1") == ["x + reciprocal"]
    assert "Published numbers usually come from the best epoch on the test set" in " ".join(made.notes)
    assert [(run.row, run.problem) for run in of_study(tmp_path).runs if run.problem] == [("y", "not finished")]


def test_formats(directory: Path, tmp_path: Path) -> None:
    """The same numbers in Markdown, LaTeX and CSV, which has one line per run."""
    output, runs = directory / "report", [*map(str, sorted(directory.glob("alpha*")))]
    study.execute(["--runs", *runs, f"--output={output}"])
    best = f"{100 * np.mean([hits(0.6 + 0.01 * s, seed=s).mean() for s in range(3)]):.1f}"
    text = (output / "report.md").read_text().split("## ")[1].splitlines()
    assert len({line.count("|") for line in text if line.startswith("|")}) == 1
    assert any(f"**{best} ±" in line for line in text)
    tex = (output / "report.tex").read_text()
    assert rf"\textbf{{{best} $\pm$" in tex
    assert tex.count(r" \\") == 4
    assert PROTOCOL in tex.partition("caption")[2].partition("\n")[0]
    with (output / "report.csv").open() as file:
        found = list(csv.DictReader(file))
    assert len(found) == 7
    assert {row["method.proxy_anchor.alpha"] for row in found if row["row"] == "alpha8"} == {"8.0"}
    assert "method.embedding_dim" not in found[0]  # in which runs do not differ
    last = next(row for row in found if (row["row"], row["seed"]) == ("alpha16", "2"))
    assert float(last["recall@1"]) == float(hits(0.62, seed=2).mean())
    assert float(last["seconds"]) == 60
    study.execute(["--runs", *runs, f"--output={output}", "--columns=NMI,R@1"])
    assert "|  | NMI | R@1 |\n" in (output / "report.md").read_text()


def test_the_distance_is_a_property_of_a_row(tmp_path: Path) -> None:
    """Rows of one protocol but for the distance share a table, with p-values between them."""
    stated = protocol.description(cluster=False)
    for name, metric, share in (("a", "cosine", 0.5), ("b", "euclidean", 0.6)):
        for seed in range(2):
            text = stated.replace("cosine", metric)
            run = hits(share + 0.01 * seed, seed=seed)
            write_run(tmp_path / f"{name}{seed}", run, config=config(seed, alpha=share), protocol=text)
    table = table_of(tmp_path, "[ab]*")
    assert list(column(table, "distance").values()) == ["cosine", "euclidean"]
    assert "p" in table.columns
    assert "exact ranking;" in table.notes[0]
    _, without = protocol.distance_of(protocol.description())
    assert protocol.distance_of(protocol.description(metric=table_of)) == (f"{__name__}.table_of", without)  # type: ignore[arg-type]


def test_special_characters() -> None:
    table = text_tables.Table("T_1", ("n",), {"": ["a_b & <c> | 50% [x]"], "p": ["<0.001"]})
    assert r"a\_b \& $<$c$>$ | 50\%" in text_tables.latex(table)
    assert r"| a_b & <c> \| 50% [x] |" in text_tables.markdown(table)
    table = text_tables.Table("T [/bold]", (), {"[/x] p": ["[/] ~/a --b ---c\\"]}, {("[/x] p", 0)})
    assert r"\textbf{[/] \textasciitilde{}/a -{}-b -{}-{}-c\textbackslash{}}" in text_tables.latex(table)
    console = Console(file=io.StringIO(), width=80)
    text_tables.print_table(table, console)
    printed = console.file.getvalue()  # type: ignore[attr-defined]
    assert all(text in printed for text in ("T [/bold]", "[/x] p", "[/] ~/a --b ---c\\"))


@pytest.mark.parametrize(
    ("names", "facts", "expected"),
    [  # of directories, what distinguishes their runs, and the names of their rows
        ("run-0 run-1 again-1", [{}, {"alpha": 2.0}, {"seed": 1}], "run run-1 run"),
        ("x/a-0 y/a-0", [{"alpha": 1.0}, {"alpha": 2.0}], "a a-0"),
        ("short-0 short-1 long-0", [{}, {"seed": 1}, {"steps": 200}], "short short long"),
        # Even if the images have the same names.
        ("x-0 y-1", [{"data": "x"}, {"seed": 1, "data": "y"}], "x y"),
        ("a b", [{}, {"protocol": "paper protocol"}], "a a"),  # of one model
        ("ensemble2", [{"ensemble": True}], "ensemble2"),
    ],
)
def test_rows_of_runs(
    names: str, facts: list[dict[str, Any]], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Runs that differ in the seed only are one row; a run given twice is one seed."""
    monkeypatch.chdir(tmp_path)
    for name, given in zip(names.split(), facts, strict=True):
        values = {"steps": given.get("steps", 100), "protocol": given.get("protocol", PROTOCOL)}
        whole = None if "ensemble" in given else config(given.get("seed", 0), alpha=given.get("alpha", 1.0))
        write_run(Path(name), hits(0.5), config=whole, **values)
        if whole:
            stored = {"config": whole, "data_hash": given.get("data", "")}
            (Path(name) / "config.json").write_text(json.dumps(stored))
    directories = [*map(Path, names.split())]
    found = tables.summarise_runs([*directories, directories[0]], "recall@1")
    assert [run.row for run in found.runs] == expected.split()


def test_without_embeddings_the_images_are_unknown(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_run(tmp_path / name, hits(0.5), config=config())
        (tmp_path / name / "embeddings" / "test" / "manifest.json").unlink()
    with pytest.raises(ConfigError, match="different test images"):
        outcomes.comparable([outcomes.read_run(tmp_path / name) for name in ("a", "b")])
    for name in ("a", "b"):
        (tmp_path / name / "config.json").write_text(json.dumps({"config": config(), "data_hash": "x"}))
    outcomes.comparable([outcomes.read_run(tmp_path / name) for name in ("a", "b")])


def test_grids_have_a_heat_map(tmp_path: Path) -> None:
    for number, (layers, heads) in enumerate(((1, 2), (1, 4), (2, 2))):
        name = f"layers={layers} heads={heads}"
        write_run(tmp_path / name, hits(0.1 * (number + 1)), config=config(alpha=float(number)))
    runs = [replace(outcomes.read_run(path), row=path.name) for path in sorted(tmp_path.iterdir())]
    _, trained = outcomes.comparable(runs)
    figure = tables.plot_grid(trained, "recall@1")
    axes = figure.axes[0]
    shown = np.ma.filled(axes.images[0].get_array(), np.nan)
    expected = [[100 * float(hits(share).mean()) for share in (0.1, 0.2)], [100 * float(hits(0.3).mean()), np.nan]]
    np.testing.assert_allclose(shown, expected)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("heads", "layers")
    trained["another"] = trained.pop("layers=1 heads=2")
    assert tables.plot_grid(trained, "recall@1") is None
