"""Hooks of mkdocs: the parts of the site that are made from code and configurations, so that they
cannot drift.

A line `<!-- generated: NAME -->` in a page is replaced by what the function NAME in PARTS returns.
Each notebook becomes a page, and so do the reports in `benchmarks/` and the cards of the
configurations; the tables and figures in `papers/*.md` get their published numbers.
"""

import ast
import dataclasses
import inspect
import io
import itertools
import json
import re
import sys
import tomllib
import typing
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

from markdown.extensions.toc import slugify
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from benchmarks.claims import ledger
from benchmarks.claims import verdicts as decided
from benchmarks.claims.ledger import Target
from configs import cards, published
from dml_jax.__main__ import COMMANDS, main
from dml_jax.config import Config, choices, modules, plugin_module
from dml_jax.config import files as config_files
from dml_jax.config.fields import meanings
from dml_jax.config.sections import Data, Evaluation, Group, Train
from dml_jax.config.show import type_name
from dml_jax.lab import plan
from dml_jax.methods import baseline
from tests.layers import LAYERS

ROOT = Path(__file__).parents[1]
DATA_SETS = {
    "cub": "CUB-200-2011",
    "cars": "Cars196",
    "sop": "Stanford Online Products",
    "inshop": "In-Shop Clothes",
}
WIDTH = "110"  # of the commands' help, in characters


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    cells = [
        header,
        ["---"] * len(header),
        *([cell.replace("|", "\\|") for cell in row] for row in rows),
    ]
    return "\n".join(f"| {' | '.join(row)} |" for row in cells) + "\n"


def numbers(first: str, names: dict[str, str]) -> str:
    """A table of published results, as printed; empty if there are none.

    Args:
      first: heading of the first column.
      names: by what `published.csv` calls a configuration or a row, what is written in the first
        column; "PROTOCOL" in it is replaced by the option.
    """
    return results_table(
        first,
        [(text, result) for name, text in names.items() for result in published.results(name)],
    )


def results_table(first: str, results: list[tuple[str, list[published.Entry]]]) -> str:
    """A table of published results with their labels, see `numbers`."""
    metrics = {entry.metric for _, result in results for entry in result}
    keys = sorted(metrics, key=lambda key: (key == "nmi", len(key), key))
    rows = []
    for text, result in results:
        entry = result[0]
        label = text.replace("PROTOCOL", "" if entry.protocol == "clean" else " --protocol=paper")
        printed = {e.metric: f"{e.printed} ± {e.spread}" if e.spread else e.printed for e in result}
        after = f"after refinement ({entry.refined})" if entry.refined else ""
        where = ", ".join(
            filter(None, (entry.source, entry.paper, entry.place, entry.settings, after))
        )
        rows.append([label, *(printed.get(key, "–") for key in keys), where])
    header = [key.replace("recall@", "R@").replace("nmi", "NMI").replace("_", " ") for key in keys]
    return table([first, *header, "source"], rows) if rows else ""


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
                f"[{heading}](../results.md#{anchor}).\n"
            )
        if measured:
            text.append(
                f"Claims of it are tested on {' and '.join(measured)}: [the "
                "ledger](../claims.md).\n"
            )
        text.append(results_table("result of", printed_in(source, section)))
    return "\n".join(text)


def card_page(path: Path) -> str:
    """Every value of a configuration file that decides a result, with its source, and where the
    authors' protocol or a variant has another one."""
    name, module = path.stem, config_files.run_file("--config", str(path))
    main = cards.values(config_files.resolved(name, {}))

    def section(title: str, variant: str, protocol: str) -> str:
        experiment = f"{name}:{variant}" if variant else name
        values = cards.values(config_files.resolved(experiment, {}, protocol=protocol))
        lines = {key: cards.line_of(f"{experiment}@{protocol or 'clean'}", key) for key in values}
        rows = [
            [f"`{key}`", f"`{line.value}`", line.state, line.source]
            for key, line in lines.items()
            if line and (title == "Values" or values[key] != main.get(key))
        ]
        command = f"python -m dml_jax.main --config={experiment}"
        command += f" --protocol={protocol}" if protocol else ""
        shown = table(["key", "value", "state", "source"], rows)
        return f"## {title}\n\n```bash\n{command}\n```\n\n{shown}"

    variants = getattr(module, "VARIANTS", ())
    names = {
        name: "PROTOCOL",
        **{f"{name}:{variant}": f":{variant}PROTOCOL" for variant in variants},
    }
    text = [
        f"# {name}",
        inspect.cleandoc(module.__doc__ or "").partition("\n\n")[0],
        "A value that is not `as the authors`, `as the paper` or `as the reproduction` says why.",
        numbers("published, in percent", {key: f"`{name}{end}`" for key, end in names.items()}),
        section("Values", "", ""),
    ]
    if hasattr(module, "PAPER_PROTOCOL"):
        text.append(section("The authors' protocol: what differs", "", "paper"))
    text += (section(f"`{variant}`: what differs", variant, "") for variant in variants)
    return "\n\n".join(text)


def configurations() -> dict[str, Path]:
    """The files that have a page, by its path."""
    files = config_files.known_files("--config").values()
    return {
        f"configurations/{path.stem}.md": path
        for path in sorted(files)
        if "get_config" in path.read_text(encoding="utf-8")
    }


def papers() -> str:
    """The papers' numbers in percent, with the command of each."""
    text = []
    for data, title in DATA_SETS.items():
        text.append(f"## {title}\n")
        for path in sorted((ROOT / "configs").glob(f"{data}_*.py")):
            module = config_files.run_file("--config", str(path))
            names = [
                path.stem,
                *(f"{path.stem}:{variant}" for variant in getattr(module, "VARIANTS", ())),
            ]
            found = numbers(
                "command",
                {name: f"`python -m dml_jax.main --config={name}PROTOCOL`" for name in names},
            )
            if found:
                about = (module.__doc__ or "").partition("\n")[0]
                link = f"[{path.stem}](configurations/{path.stem}.md)"
                text.append(f"### {link}\n\n{about}\n\n{found}")
    return "\n".join(text)


def studies() -> str:
    """The tables and figures of the papers and their reproductions, with the command of each and
    published numbers."""
    rows, text = [], []
    for own, path in sorted(config_files.known_files("--study").items()):
        variants = config_files.run_file("--study", str(path)).VARIANTS
        # A study of several data sets is listed once.
        for variant in {name.partition("-")[0]: name for name in reversed(variants)}.values():
            _, study = plan.load(f"{path}:{variant}")
            rows.append(
                [
                    study.title.rpartition(":")[0],
                    study.source,
                    f"`dml-jax study --study={own}:{variant}`",
                ]
            )
        found: dict[str, dict[str, str]] = {}  # by study with its variant, then by row
        for of in (of for entry in published.entries() for of in entry.of):
            name, _, row = of.partition("/")
            if row and name.partition(":")[0] == own:
                found.setdefault(name, {})[of] = row
        text += [f"### {name}\n\n{numbers('row', names)}" for name, names in found.items()]
    return table(["study", "source", "command"], rows) + "\n" + "\n".join(text)


def verdict_tables() -> str:
    """The verdicts on every data set and recipe of which there are measurements."""
    text, verdicts = [], []
    for name, lines in measurements().items():
        target = Target(*name.split("-"))
        for paper in ledger.papers():
            title, stated = ledger.load(paper)
            entries = decided.ledger(stated, lines, target)
            if shown := [entry for entry in entries if entry.first.units.values]:
                rows = [list(decided.cells(entry, len(entries))) for entry in shown]
                text.append(f"\n### {title}, on {name}\n\n{table(list(decided.HEAD), rows)}")
                verdicts += [entry.first.verdict for entry in shown]
    counts = (f"{verdicts.count(name)} {name}" for name in sorted(set(verdicts), reverse=True))
    return f"Verdicts: {', '.join(counts) or 'none yet'}.\n\n" + "\n".join(text)


def claims() -> str:
    """The claims of each paper."""
    text = []
    for paper in ledger.papers():
        title, stated = ledger.load(paper)
        text.append(f"### {title}\n")
        text += [
            f"- `{claim.name}`: {claim.says} ({claim.where}; `{claim.study}`)" for claim in stated
        ]
        text.append("")
    return "\n".join(text)


def commands() -> str:
    """What each command prints with --help."""
    text = []
    for name in COMMANDS:
        output = io.StringIO()
        arguments = mock.patch.object(sys, "argv", ["dml-jax", name, "--help"])
        with arguments, mock.patch.dict("os.environ", {"COLUMNS": WIDTH}), redirect_stdout(output):
            main()
        text.append(f"## {name}\n\n```text\n{output.getvalue().strip()}\n```\n")
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
    """Every option of a configuration."""
    sections: dict[str, Iterator[list[str]]] = {
        "experiment": (row for row in rows_of(Config) if row[0] in ("`seed`", "`init_from`")),
        "data": rows_of(Data, "data."),
        "train": rows_of(Train, "train."),
        "train.groups": rows_of(Group, "train.groups.NAME."),
        "evaluation": rows_of(Evaluation, "evaluation."),
    }
    for kind in ("backbone", "method"):
        for name in choices(kind):
            sections[f"{kind}.name={name}"] = rows_of(plugin_module(kind, name).Config, f"{kind}.")
    for name, loss in baseline.LOSSES.items():
        sections[f"method.loss={name}"] = rows_of(modules.options(loss), f"method.{name}.")
    header = ["key", "type", "default", "meaning"]
    return "\n".join(
        f"## `{title}`\n\n{table(header, rows)}"
        for title, found in sections.items()
        if (rows := list(found))
    )


def tree() -> str:
    """The packages and top-level modules of the code with their docstrings' first sentences, and
    the order of the layers."""
    package = ROOT / "dml_jax"
    rows = []
    for path in sorted({*package.glob("*.py"), *package.rglob("__init__.py")}):
        name = path.relative_to(ROOT)
        shown = f"{name.parent}/" if name.name == "__init__.py" else str(name)
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        first = " ".join(text.partition("\n\n")[0].split()).partition(". ")[0]
        rows.append([f"`{shown}`", first.rstrip(".:")])
    order = " < ".join(
        ", ".join(f"`{name}`" for name in sorted(layer - {"__init__"})) for layer in LAYERS
    )
    return f"{table(['where', 'what'], sorted(rows))}\nFrom the lowest layer: {order}."


PARTS = {
    "tree": tree,
    "papers": papers,
    "verdicts": verdict_tables,
    "claims": claims,
    "studies": studies,
    "commands": commands,
    "options": options,
}


def notebook(path: Path) -> str:
    """A notebook with its outputs as Markdown."""
    text = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        text.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            if "image/png" in data:
                text.append(
                    f"![figure](data:image/png;base64,{''.join(data['image/png'].split())})"
                )
            elif plain := "".join(output.get("text", data.get("text/plain", ""))):
                text.append(f"```text\n{plain.rstrip()}\n```")
    return "\n\n".join(text) + f"\n\n[Download this notebook]({path.name})\n"


def repository() -> str:
    """The address of the repository."""
    facts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return str(facts["project"]["urls"]["Repository"])


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Lists the pages of the papers below "Results", and those of the configurations."""
    pages = sorted(path.name for path in Path(config.docs_dir, "papers").glob("*.md"))
    next(section["Results"] for section in config.nav or () if "Results" in section).insert(
        2, {"Papers": [f"papers/{name}" for name in pages]}
    )
    config.repo_url = repository()
    next(section["Reference"] for section in config.nav or () if "Reference" in section).append(
        {"Configurations": list(configurations())}
    )
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages that are made from files of other kinds."""
    for path in sorted(Path(config.docs_dir, "notebooks").glob("*.ipynb")):
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=notebook(path)))
    for page in ("results.md", "TIMINGS.md", "ACCELERATORS.md"):
        content = (ROOT / "benchmarks" / page.replace("results", "RESULTS")).read_text(
            encoding="utf-8"
        )
        content = content.replace("](../docs/", "](").replace("](RESULTS.md", "](results.md")
        files.append(File.generated(config, page, content=content))
    for page, path in configurations().items():
        files.append(File.generated(config, page, content=card_page(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Fills in what is generated; links to files that are read outside of the site lead to the
    pages made from them."""
    if page.file.src_uri.startswith("papers/"):
        return paper_page(markdown)
    markdown = re.sub(
        r"(?<=\]\()((?:\.\./)*)\.\./benchmarks/RESULTS\.md", r"\1results.md", markdown
    )
    markdown = re.sub(
        r"(?<=\]\()((?:\.\./)*)\.\./benchmarks/ACCELERATORS\.md", r"\1ACCELERATORS.md", markdown
    )
    markdown = markdown.replace("REPOSITORY", repository())
    markdown = re.sub(r"(?<=/notebooks/)(\w+)\.ipynb(?=[)#])", r"\1.md", markdown)
    return re.sub(
        r"^<!-- generated: (\w+) -->$",
        lambda found: PARTS[found[1]](),
        markdown,
        flags=re.MULTILINE,
    )
