"""Hooks of mkdocs: the parts of the site that are made from code and configurations, so that they
cannot drift.

A line `<!-- generated: NAME -->` in a page is replaced by what the function NAME in PARTS returns;
the tables and figures in `papers/*.md` get their published numbers, and the values of the recipe
that are not the authors'. Links to files outside `docs/` lead to the repository.
"""

import dataclasses
import io
import itertools
import re
import sys
import tomllib
import typing
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.pages import Page

from benchmarks.claims import ledger
from benchmarks.claims import verdicts as decided
from benchmarks.claims.ledger import Target
from configs import cards, published
from dml_jax.__main__ import COMMANDS, main
from dml_jax.config import Config, choices, plugin_module
from dml_jax.config.fields import meanings
from dml_jax.config.sections import Data, Evaluation, Group, Train
from dml_jax.config.show import type_name

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
WIDTH = "110"  # of the commands' help, in characters


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    cells = [
        header,
        ["---"] * len(header),
        *([cell.replace("|", "\\|") for cell in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells) + "\n"


def results_table(first: str, results: list[tuple[str, list[published.Entry]]], page: str) -> str:
    """A table of published results.

    Args:
      first: heading of the first column.
      results: each with what is written in the first column.
      page: the paper whose page has the table, which the last column does not repeat.
    """
    metrics = {entry.metric for _, result in results for entry in result}
    keys = sorted(metrics, key=lambda key: (key == "nmi", len(key), key))
    rows = []
    for label, result in results:
        entry = result[0]
        printed = {e.metric: f"{e.printed} ± {e.spread}" if e.spread else e.printed for e in result}
        refined = f"after refinement ({entry.refined})" if entry.refined else ""
        where = () if entry.paper == page else (entry.paper, entry.place)
        source = ", ".join(filter(None, (entry.source, *where, entry.settings, refined)))
        rows.append([label, *(printed.get(key, "–") for key in keys), source])
    names = (key.replace("recall@", "R@").replace("nmi", "NMI").replace("_", " ") for key in keys)
    header = [first, *names, "source"]
    if len({row[-1] for row in rows}) == 1 and results[0][1][0].paper == page:
        header, rows = header[:-1], [row[:-1] for row in rows]
    return table(header, rows) if rows else ""


def places(text: str) -> set[str]:
    """The tables and figures in "Tables 3 and 8", "Figures 6, 10-13" or "quoted by X, Table 6", one
    by one."""
    found = set()
    for kind, numbers in re.findall(r"(Table|Figure)s? (\d[\w, -]*)", text):
        for first, letter, last in re.findall(r"\b(\d+)([a-z]?)\b(?:-(\d+))?", numbers):
            found |= {
                f"{kind} {number}{letter}" for number in range(int(first), int(last or first) + 1)
            }
    return found


def sections(page: str) -> tuple[str, str, list[str]]:
    """What a page of a paper begins with, the paper's name in `published.csv`, which is its second
    paragraph, and its sections, one for each table or figure."""
    head, *found = re.split(r"^(?=## )", page, flags=re.MULTILINE)
    return head, head.split("\n\n")[1].strip(), found


def printed_in(source: str, section: str) -> list[tuple[str, list[published.Entry]]]:
    """The published results in a table or figure, each with what it is the result of."""
    author, heading = source.partition(",")[0], section.partition(":")[0]
    found = (
        entry
        for entry in published.entries()
        if (entry.paper == source or entry.place.startswith(f"quoted by {author},"))
        and places(entry.place) & places(heading)
    )
    given = set(re.findall(r"--(?:config|study)=(\S+)", section))
    results = [list(metrics) for _, metrics in itertools.groupby(found, lambda entry: entry[:8])]
    names = [
        [of for of in result[0].of if of.partition("/")[0] in given] or [result[0].of[0]]
        for result in results
    ]
    return [(f"`{name[0]}`", result) for name, result in zip(names, results, strict=True)]


def stored_results(section: str) -> tuple[list[str], list[str]]:
    """Where results of the studies of a table or figure are: headings in `benchmarks/RESULTS.md`
    below which a study is named, and the data sets on which claims measured it
    (`benchmarks/claims`)."""
    studies = set(re.findall(r"--study=(\w+:\w+)-", section))
    parts = re.split(
        r"^## ", (ROOT / "benchmarks/RESULTS.md").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    headings = [
        part.partition("\n")[0]
        for part in parts[1:]
        if any(f"`{name}-" in part for name in studies)
    ]
    return headings, [
        data
        for data, lines in measurements().items()
        if studies & {line["study"] for line in lines}
    ]


def measurements() -> dict[str, ledger.Lines]:
    """The measurements of claims, `benchmarks/claims/PAPER/DATA[-RECIPE].csv`, by name."""
    found: dict[str, ledger.Lines] = {}
    for path in sorted((ROOT / "benchmarks/claims").glob("*/*.csv")):
        found.setdefault(path.stem, []).extend(ledger.read(path))
    return dict(sorted(found.items()))


def paper_page(page: str) -> str:
    """Every table and figure of a paper, with the commands that give it, published numbers and our
    own."""
    head, source, found = sections(page)
    text = [
        head,
        "Training needs the data and the ImageNet weights. The tables show the published numbers, "
        "in percent; their first column is the configuration, or the study and its row. What the "
        "paper quotes from others for comparison is left out unless it has a configuration here.\n",
    ]
    for section in found:
        text.append(section)
        headings, measured = stored_results(section)
        for heading in headings:
            anchor = slugify(heading.replace("`", ""), "-")
            text.append(
                "Measured with dml_jax, in a smaller setting: "
                f"[{heading}](../../benchmarks/RESULTS.md#{anchor}).\n"
            )
        if measured:
            text.append(
                f"Claims of it are tested on {' and '.join(measured)}: [the "
                "ledger](../claims.md).\n"
            )
        text.append(results_table("result of", printed_in(source, section), source))
    return "\n".join(text)


def deviations(folder: str) -> str:
    """The values of a card that are not the authors', each with the reason."""
    lines = (line for line in cards.read(folder) if line.state in ("differs", "not stated"))
    rows = []
    for (which, state, source), group in itertools.groupby(
        lines, lambda line: (line.of, line.state, line.source)
    ):
        values = ", ".join(f"`{line.key}={line.value}`" for line in group)
        rows.append([f"`{which}`", values, f"{state}: {source}"])
    return table(["configurations", "values", "why"], rows) if rows else ""


def recipe(name: str) -> str:
    """The section of a paper's page about its configurations."""
    if not (ROOT / f"configs/{name}/values.csv").exists():
        return ""
    files = sorted(path.stem for path in (ROOT / "configs").glob(f"*_{name}.py"))
    return (
        "\n## Configurations\n\n"
        f"{', '.join(f'`{file}`' for file in files)}. Every value that decides a result has its "
        f"source in [values.csv](../../configs/{name}/values.csv). On the paper's data, these are "
        f"not as the authors':\n\n{deviations(name)}"
    )


def baselines() -> str:
    """Published results of the configurations that have no page, and the values of the baselines,
    the Group Loss and the students that are not their authors'."""
    pages = {sections(path.read_text(encoding="utf-8"))[1] for path in DOCS.glob("papers/*.md")}
    entries = (
        entry
        for entry in published.entries()
        if "/" not in entry.of[0] and "_baseline" in entry.of[0] and entry.paper not in pages
    )
    results = [
        (f"`{metrics[0].of[0]}`", metrics)
        for _, group in itertools.groupby(entries, lambda entry: entry[:8])
        for metrics in [list(group)]
    ]
    parts = [results_table("configuration", results, "")]
    parts += [deviations(folder) for folder in (cards.RECIPES, "group_loss", "student")]
    return "\n".join(parts)


def claims() -> str:
    """Every claim of each paper, and the verdicts on every data set that has measurements."""
    text, verdicts = [], []
    for paper in ledger.papers():
        title, stated = ledger.load(paper)
        expected: dict[str, str] = {}
        results: dict[str, list[str]] = {claim.name: [] for claim in stated}
        untested = defaultdict[str, list[str]](list)
        for name, lines in measurements().items():
            entries = decided.ledger(stated, lines, Target(*name.split("-")))
            for entry in entries:
                cells = dict(zip(decided.HEAD, decided.cells(entry, len(entries)), strict=True))
                expected[cells["claim"]] = f"{cells['metric']} {cells['expected']}"
                if entry.first.units.values:
                    verdicts.append(entry.first.verdict)
                    if verdicts[-1] == decided.NOT_TESTABLE:
                        untested[cells["claim"]].append(name)
                        continue
                    results[cells["claim"]].append(
                        f"{name}: {cells[decided.EFFECT]}, **{entry.first.verdict}**"
                        + (f"; mechanism: {entry.mechanism}" if entry.mechanism else "")
                    )
        for claim, names in untested.items():
            results[claim].append(f"{decided.NOT_TESTABLE}: {', '.join(names)}")
        rows = [
            [
                f"`{claim.name}`: {claim.says} ({claim.where})",
                expected[claim.name],
                "<br>".join(results[claim.name]),
            ]
            for claim in stated
        ]
        text.append(f"### {title}\n\n{table(['claim', 'expected', 'measured'], rows)}")
    counts = (f"{verdicts.count(name)} {name}" for name in sorted(set(verdicts), reverse=True))
    return f"Verdicts: {', '.join(counts) or 'none yet'}.\n\n" + "\n".join(text)


def commands() -> str:
    """What each command does."""
    text, first = [], dict[str, str]()
    for name in COMMANDS:
        output = io.StringIO()
        arguments = mock.patch.object(sys, "argv", ["dml-jax", name, "--help"])
        with arguments, mock.patch.dict("os.environ", {"COLUMNS": WIDTH}), redirect_stdout(output):
            main()
        about = output.getvalue().strip().partition("\noptions:\n")[0]
        about = about.partition("\n\n")[2].partition("\npositional arguments:")[0].strip()
        original = first.setdefault(about, name)
        body = f"```text\n{about}\n```" if original == name else f"The same as `{original}`."
        text.append(f"### {name}\n\n{body}\n")
    return "\n".join(text)


def rows_of(section: Any, prefix: str = "") -> Iterator[list[str]]:
    """Key, type, default and meaning of each option of a section, a class or an instance, and of
    the sections in it."""
    kind = section if isinstance(section, type) else type(section)
    hints, texts = typing.get_type_hints(kind, include_extras=True), meanings(kind)
    for field in dataclasses.fields(kind):
        default = field.default if section is kind else getattr(section, field.name)
        if dataclasses.is_dataclass(default):
            yield from rows_of(default, f"{prefix}{field.name}.")
            continue
        text = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
        shown = "" if default is dataclasses.MISSING or text == "" else f"`{text}`"
        yield [
            f"`{prefix}{field.name}`",
            type_name(hints[field.name]),
            shown,
            texts.get(field.name, ""),
        ]


def options() -> str:
    """Every option of a configuration, once; options of several parts are merged if they agree."""
    sections: dict[str, Iterator[list[str]]] = {
        "Experiment": (row for row in rows_of(Config) if row[0] in ("`seed`", "`init_from`")),
        "Data": rows_of(Data, "data."),
        "Train": rows_of(Train, "train."),
        "Parameter groups": rows_of(Group, "train.groups.NAME."),
        "Evaluation": rows_of(Evaluation, "evaluation."),
    }
    header = ["key", "type", "default", "meaning"]
    parts = [f"### {title}\n\n{table(header, list(rows))}" for title, rows in sections.items()]
    plugins = {
        kind: {
            name: rows_of(plugin_module(kind, name).Config, f"{kind}.") for name in choices(kind)
        }
        for kind in ("backbone", "method")
    }
    for kind, tables in plugins.items():
        users: dict[tuple[str, str, str], dict[str, str]] = {}  # the names of parts: their defaults
        for name, rows in tables.items():
            for key, kind_of, default, meaning in rows:
                users.setdefault((key, kind_of, meaning), {})[name] = default
        shared = []
        for (key, kind_of, meaning), defaults in sorted(users.items(), key=lambda x: -len(x[1])):
            names = "all" if len(defaults) == len(tables) else ", ".join(defaults)
            usual, *others = (each for each, _ in Counter(defaults.values()).most_common())
            for other in others:
                owners = ", ".join(name for name in defaults if defaults[name] == other)
                usual += f"; {owners}: {other or '–'}"
            if key != f"`{kind}.name`":
                shared.append([key, kind_of, usual, meaning, names])
        parts.append(f"### {kind.title()}s\n\n{table([*header, 'of'], shared)}")
    return "\n".join(parts)


def papers() -> str:
    """The pages of the papers."""
    rows = []
    for path in sorted(DOCS.glob("papers/*.md")):
        if not path.stem.startswith("re_"):
            head, source, _ = sections(path.read_text(encoding="utf-8"))
            title = head.partition("\n")[0].removeprefix("# ")
            rows.append([f"[{title}](../papers/{path.name})", source])
    return table(["page", "paper"], rows)


PARTS = {
    "papers": papers,
    "baselines": baselines,
    "claims": claims,
    "commands": commands,
    "options": options,
}


def repository() -> str:
    """The address of the repository."""
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return str(facts["project"]["urls"]["Repository"])


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists the pages of the papers after the guide to them."""
    config.repo_url = repository()
    names = (path.name for path in sorted(DOCS.glob("papers/*.md")))
    pages = [f"papers/{name}" for name in names if not name.startswith("re_")]
    next(section["Papers"] for section in config.nav or () if "Papers" in section)[1:1] = pages
    return config


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Fills in what is generated; links to files that are not pages lead to the repository."""
    source = Path(page.file.abs_src_path or "")
    if page.file.src_uri.startswith("papers/"):
        second = source.with_name(f"re_{source.name}")
        markdown = paper_page(markdown) + (
            "\n" + re.sub(r"^#", "##", paper_page(second.read_text("utf-8")), flags=re.MULTILINE)
            if second.exists()
            else ""
        )
        markdown += recipe(source.stem)

    def link(found: re.Match[str]) -> str:
        path = (source.parent / found[1]).resolve()
        if path.is_relative_to(DOCS) and path.suffix != ".ipynb":
            return found[0]
        return f"]({repository()}/blob/main/{path.relative_to(ROOT)}{found[2] or ''})"

    markdown = re.sub(
        r"^<!-- generated: (\w+) -->$",
        lambda found: PARTS[found[1]](),
        markdown.replace("REPOSITORY", repository()),
        flags=re.MULTILINE,
    )
    return re.sub(r"\]\((?!\w+:|#)([\w./-]+)(#[\w-]*)?\)", link, markdown)
