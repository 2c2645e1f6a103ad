"""The results of a run for people: the table on the console, the figures, and the self-contained `report.html`."""

import base64
import html
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from dml_jax.analysis import figures, findings, tables
from dml_jax.analysis.page_style import STYLE
from dml_jax.config import Config, flatten
from dml_jax.data.split import Split
from dml_jax.errors import CheckpointError, printable
from dml_jax.evaluation import metric_table, verification
from dml_jax.files import atomic_write, reading

VERIFICATION_IMAGES = 2000  # random sample whose pairs are compared for the figure
CAPTIONS = {
    "curves": "Training loss, and Recall@1 at each evaluation during training.",
    "classes": "Embeddings of the test images, whose classes were not seen in training, projected on their first two "
    "principal components. The largest classes are coloured.",
    "errors": "Verification: two images are accepted as the same class if their cosine similarity reaches a threshold. "
    "Left: error rates over the threshold (dotted: where they are equal). Right: the ROC curve.",
    "neighbors": "Test queries (left column) and their nearest images, nearest first. Solid blue frames: same class as "
    "the query; dashed orange frames: another class. Half of the queries are sampled from those whose nearest image is "
    "wrong, so the grid shows more failures than Recall@1 implies.",
}


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
    gallery: np.ndarray | None = None,
) -> None:
    """Writes `figures/*.png` and `report.html` of a run.

    Args:
      directory: the work directory.
      config: of the run.
      results: as in `results.json`.
      embeddings: float32 [N, D] of the test split.
      split: the test split.
      lines: of `metrics.jsonl`.
      gallery: float32 [G, D] of the gallery of the test split, if it has one.
    """
    figure_directory = directory / "figures"
    figure_directory.mkdir(exist_ok=True)
    controls = {name: numbers["recall@1"] for name, numbers in results.get("controls", {}).items()}
    figures.plot_training_curves(figure_directory / "curves.png", lines, controls)
    figures.plot_class_map(figure_directory / "classes.png", embeddings, split.labels, split.classes)
    if split.gallery is None:
        sample = np.random.default_rng(0).permutation(len(embeddings))[:VERIFICATION_IMAGES]
        errors = verification.error_rates(embeddings[sample], split.labels[sample])
        figures.plot_verification_errors(figure_directory / "errors.png", errors)
    figures.plot_retrieval_grid(figure_directory / "neighbors.png", embeddings, split, gallery)
    write_page(directory, config, results, lines)


def write_page(directory: Path, config: Config, results: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    """Writes `report.html` from the results, the figures on disk and what analyses have found.

    Args:
      directory, config, results, lines: see `write`.
    """
    page = _page(directory, config, results, lines)
    with atomic_write(directory / "report.html") as draft:
        draft.write_text(page, encoding="utf-8")


def _page(directory: Path, config: Config, results: dict[str, Any], lines: list[dict[str, Any]]) -> str:
    columns = metric_table.columns(results)
    head = "".join(f"<th>{text}</th>" for text in ("", *(entry.heading for entry in columns)))
    body = "".join(
        f"<tr{' class=ours' if numbers is results else ''}><td>{_text(name)}</td>"
        + "".join(f"<td>{metric_table.cell(numbers, entry)}</td>" for entry in columns)
        + "</tr>"
        for name, numbers in rows(config, results)
    )
    drawn = {name: directory / "figures" / f"{name}.png" for name in CAPTIONS}
    images = "".join(_figure(path, _text(CAPTIONS[name])) for name, path in drawn.items() if path.exists())
    settings = "\n".join(_text(f"{key} = {value}") for key, value in flatten(asdict(config)).items())
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{_text(config.name)}</title><style>{STYLE}</style>
<h1>{_text(config.name)}</h1>
<p class="lead">{_text(config.method.name)} on {_text(config.data.name)}: image retrieval on classes that
were not seen in training.</p>
<h2>Results, in %</h2>
<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
<p><small>± is one standard error over the queries. Evaluation: {_text(results["protocol"])}.</small></p>
{_verification_text(results)}{_warnings(lines)}<h2>Figures</h2>{images}{_sections(directory)}
<details><summary>Configuration</summary><pre><code>{settings}</code></pre></details>
</html>
"""


def _figure(path: Path, caption: str) -> str:
    """A figure with its picture in the page; `caption` is HTML."""
    with reading(path, "make it again with dml_jax.analyse", CheckpointError):
        picture = base64.b64encode(path.read_bytes()).decode()
    return (
        f"<figure><img alt='{path.stem}' src='data:image/png;base64,{picture}'>"
        f"<figcaption>{caption}</figcaption></figure>"
    )


def _sections(directory: Path) -> str:
    """What `dml_jax.analyse` has written."""
    text = ""
    for section in findings.read(directory):
        text += f"<h2>{_text(section.title)} <small>(step {section.step})</small></h2>"
        for name, caption in section.figures:
            numbers = f" <a href='{findings.DIRECTORY}/{name}.csv'>Numbers</a>"
            text += _figure(directory / findings.DIRECTORY / f"{name}.png", _text(caption) + numbers)
    return text


def _warnings(lines: list[dict[str, Any]]) -> str:
    """Each warning of the training with the first step that it was given at."""
    first: dict[str, tuple[int, str]] = {}
    for line in lines:
        for name, text in line.get("warnings", {}).items():
            first.setdefault(name, (line["step"], text))
    if not first:
        return ""
    entries = "".join(f"<li>step {step}: {_text(text)}</li>" for step, text in first.values())
    return f"<h2>Warnings of the training</h2><ul class='warnings'>{entries}</ul>"


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
