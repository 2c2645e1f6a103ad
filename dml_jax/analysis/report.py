"""The results of a run for people: the table on the console, the figures, and the self-contained `report.html`."""

import base64
import html
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from dml_jax.analysis import figures, tables
from dml_jax.config import Config, flatten
from dml_jax.data.split import Split
from dml_jax.errors import printable
from dml_jax.evaluation import metric_table, verification

VERIFICATION_IMAGES = 2000  # random sample whose pairs are compared for the figure
STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.6rem; margin-bottom: 0 } h2 { font-size: 1.15rem; margin-top: 2.2rem }
p.lead, figcaption, small { color: #52606d }
table { border-collapse: collapse; font-variant-numeric: tabular-nums }
th, td { padding: .3rem .6rem; text-align: right; white-space: nowrap; border-bottom: 1px solid #e4e7eb }
th:first-child, td:first-child { text-align: left } tr.ours { font-weight: 600; background: #ebfbee }
figure { margin: 1rem 0 } img { max-width: 100% } details { margin-top: 2rem } code { font-size: .85rem }
"""


def rows(config: Config, results: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Name and metrics of each row of the result table: baselines, this run, its refined embeddings, the paper."""
    ours = [(f"{config.method.name}, {results['model']} (step {results['step']})", results)]
    ours += [(_refined_name(kind, numbers), numbers) for kind, numbers in results.get("refined", {}).items()]
    # Published numbers are those of the epoch that is best on the test set.
    name = "paper" if config.train.select == "test" else "paper (selected on test)"
    paper = [(name, config.paper)] if config.paper else []
    return [*results.get("controls", {}).items(), *ours, *paper]


def _refined_name(kind: str, numbers: dict[str, Any]) -> str:
    """The kind of batches used for refinement, with the number of clusters and the run time where known."""
    text = f"+ {kind}"
    if "clusters" in numbers:
        text += f", {numbers['clusters']:,} clusters"
    return text + (f", {numbers['seconds']:.1f} s" if "seconds" in numbers else "")


def print_table(config: Config, results: dict[str, Any], console: Console) -> None:
    """Prints the result table of a run."""
    tables.print_results(f"{config.name}: unseen classes, in %", rows(config, results), results, console)


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
    figure_directory = directory / "figures"
    figure_directory.mkdir(exist_ok=True)
    captions = {
        "curves": "Training loss, and Recall@1 at each evaluation during training.",
        "classes": "Embeddings of the test images, whose classes were not seen in training, projected on their first "
        "two principal components. The largest classes are coloured.",
    }
    controls = {name: numbers["recall@1"] for name, numbers in results.get("controls", {}).items()}
    figures.plot_training_curves(figure_directory / "curves.png", lines, controls)
    figures.plot_class_map(figure_directory / "classes.png", embeddings, split.labels, split.classes)
    if split.gallery is None:
        captions["errors"] = (
            "Verification: two images are accepted as the same class if their cosine similarity reaches a threshold. "
            "Left: error rates over the threshold (dotted: where they are equal). Right: the ROC curve."
        )
        sample = np.random.default_rng(0).permutation(len(embeddings))[:VERIFICATION_IMAGES]
        errors = verification.error_rates(embeddings[sample], split.labels[sample])
        figures.plot_verification_errors(figure_directory / "errors.png", errors)
        captions["neighbors"] = (
            "Test queries (left column) and their nearest neighbours, nearest first. Green frames: same class as the "
            "query; red frames: another class. Half of the queries are sampled from those whose nearest neighbour is "
            "wrong, so the grid shows more failures than Recall@1 implies."
        )
        figures.plot_retrieval_grid(figure_directory / "neighbors.png", embeddings, split)
    page = _page(config, results, figure_directory, captions)
    (directory / "report.html").write_text(page, encoding="utf-8")


def _page(config: Config, results: dict[str, Any], figure_directory: Path, captions: dict[str, str]) -> str:
    columns = metric_table.columns(results)
    head = "".join(f"<th>{text}</th>" for text in ("", *(entry.heading for entry in columns)))
    body = "".join(
        f"<tr{' class=ours' if numbers is results else ''}><td>{_text(name)}</td>"
        + "".join(f"<td>{metric_table.cell(numbers, entry)}</td>" for entry in columns)
        + "</tr>"
        for name, numbers in rows(config, results)
    )
    images = "".join(
        f"<figure><img alt='{name}' src='data:image/png;base64,"
        f"{base64.b64encode((figure_directory / f'{name}.png').read_bytes()).decode()}'>"
        f"<figcaption>{caption}</figcaption></figure>"
        for name, caption in captions.items()
    )
    settings = "\n".join(_text(f"{key} = {value}") for key, value in flatten(asdict(config)).items())
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><title>{_text(config.name)}</title><style>{STYLE}</style>
<h1>{_text(config.name)}</h1>
<p class="lead">{_text(config.method.name)} on {_text(config.data.name)}: image retrieval on classes that
were not seen in training.</p>
<h2>Results, in %</h2>
<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>
<p><small>± is one standard error over the queries. Evaluation: {_text(results["protocol"])}.</small></p>
{_verification_text(results)}<h2>Figures</h2>{images}
<details><summary>Configuration</summary><pre><code>{settings}</code></pre></details>
</html>
"""


def _text(text: str) -> str:
    """Text for HTML."""
    return html.escape(printable(text))


def _verification_text(results: dict[str, Any]) -> str:
    if "equal_error_rate" not in results:
        return ""
    return (
        f"<p>Verification of image pairs (same class or not): equal error rate "
        f"{100 * results['equal_error_rate']:.1f} % at a cosine threshold of {results['equal_error_cosine']:.3f}.</p>"
    )
