"""What a person reads at the end: the result table on the screen and `report.html`, one file that needs no other."""

import base64
import html
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from dml_jax.analysis import figures
from dml_jax.config import Config, flatten
from dml_jax.data.split import Split
from dml_jax.evaluation.verification import verify

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: 0 } h2 { font-size: 1.15rem; margin-top: 2.2rem }
p.lead, figcaption, small { color: #52606d }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #e4e7eb }
th:first-child, td:first-child { text-align: left } tr.ours { font-weight: 600; background: #ebfbee }
figure { margin: 1rem 0 } img { max-width: 100% } details { margin-top: 2rem } code { font-size: .85rem }
"""


def columns(config: Config) -> dict[str, str]:
    """Keys of `results.json` shown, with their headings."""
    shown = {f"recall@{k}": f"R@{k}" for k in config.evaluation.ks}
    shown |= {"map@r": "MAP@R", "r_precision": "R-precision"}
    return shown | ({"nmi": "NMI"} if config.evaluation.cluster else {})


def rows(config: Config, results: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Name and numbers of each line of the table: controls, ours, the paper's."""
    ours = [(f"{config.method.name}, {results['model']} (step {results['step']})", results)]
    ours += [(_refined(kind, numbers), numbers) for kind, numbers in results.get("refined", {}).items()]
    paper = [("paper", config.paper)] if config.paper else []
    return [*results.get("controls", {}).items(), *ours, *paper]


def _refined(kind: str, numbers: dict[str, Any]) -> str:
    """Which batches embeddings were refined in, how many clusters they are drawn from, and the time until they were."""
    text = f"+ {kind}"
    if "clusters" in numbers:
        text += f", {numbers['clusters']:,} clusters"
    return text + (f", {numbers['seconds']:.1f} s" if "seconds" in numbers else "")


def cell(numbers: dict[str, Any], key: str) -> str:
    """A number in percent with its standard error, or a dash."""
    if key not in numbers:
        return "–"
    error = numbers.get(f"{key}_stderr")
    return f"{100 * numbers[key]:.1f}" + (f" ± {100 * error:.1f}" if error is not None else "")


def table(config: Config, results: dict[str, Any], console: Console) -> None:
    """The result table on the screen."""
    shown = columns(config)
    grid = Table(title=f"{config.name}: unseen classes, %", title_justify="left")
    grid.add_column("", no_wrap=True)
    for heading in shown.values():
        grid.add_column(heading, justify="right", no_wrap=True)
    for name, numbers in rows(config, results):
        grid.add_row(name, *(cell(numbers, key) for key in shown), style="bold" if numbers is results else "")
    console.print(grid)
    console.print(results["protocol"], style="dim", markup=False)


def write(
    directory: Path,
    config: Config,
    results: dict[str, Any],
    embeddings: np.ndarray,
    split: Split,
    lines: list[dict[str, Any]],
) -> None:
    """Writes `figures/*.png` and `report.html` of a run.

    Args:
      directory: the work directory.
      config: of the run.
      results: as in `results.json`.
      embeddings: float32 [N, D] of the test split.
      split: the test split.
      lines: of `metrics.jsonl`.
    """
    pictures = directory / "figures"
    pictures.mkdir(exist_ok=True)
    controls = {name: numbers["recall@1"] for name, numbers in results.get("controls", {}).items()}
    figures.curves(pictures / "curves.png", lines, controls)
    figures.scatter(pictures / "classes.png", embeddings, split.labels, split.classes)
    captions = {"curves": "How the training went.", "classes": "Where the unseen classes lie."}
    if split.gallery is None:
        rows = np.random.default_rng(0).permutation(len(embeddings))[:2000]
        figures.errors(pictures / "errors.png", verify(embeddings[rows], split.labels[rows]))
        captions["errors"] = "Telling whether two images are of one class by their cosine: what a threshold costs."
        figures.grid(pictures / "neighbors.png", embeddings, split)
        captions["neighbors"] = (
            "Queries and what they find, nearest first: green frames show the query's class, red ones another. Half "
            "of the queries are drawn from those whose nearest neighbour is wrong."
        )
    (directory / "report.html").write_text(_page(config, results, pictures, captions), encoding="utf-8")


def _page(config: Config, results: dict[str, Any], pictures: Path, captions: dict[str, str]) -> str:
    shown = columns(config)
    head = "".join(f"<th>{text}</th>" for text in ("", *shown.values()))
    body = "".join(
        f"<tr{' class=ours' if numbers is results else ''}><td>{html.escape(name)}</td>"
        + "".join(f"<td>{cell(numbers, key)}</td>" for key in shown)
        + "</tr>"
        for name, numbers in rows(config, results)
    )
    images = "".join(
        f"<figure><img alt='{name}' src='data:image/png;base64,"
        f"{base64.b64encode((pictures / f'{name}.png').read_bytes()).decode()}'>"
        f"<figcaption>{caption}</figcaption></figure>"
        for name, caption in captions.items()
    )
    settings = html.escape("\n".join(_settings(config)))
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{html.escape(config.name)}</title><style>{STYLE}</style>
<h1>{html.escape(config.name)}</h1>
<p class="lead">{html.escape(config.method.name)} on {html.escape(config.data.name)}: retrieval of classes never seen
in training.</p>
<h2>Results, %</h2>
<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>
<p><small>± is one standard error over the queries. {html.escape(results["protocol"])}.</small></p>
{_threshold(results)}<h2>Pictures</h2>{images}
<details><summary>Configuration</summary><pre><code>{settings}</code></pre></details>
</html>
"""


def _threshold(results: dict[str, Any]) -> str:
    if "equal_error_rate" not in results:
        return ""
    return (
        f"<p>Same class or not: at a cosine of {results['equal_error_cosine']:.3f} both errors are "
        f"{100 * results['equal_error_rate']:.1f} %.</p>"
    )


def _settings(config: Config) -> list[str]:
    return [f"{key} = {value}" for key, value in flatten(asdict(config)).items()]
