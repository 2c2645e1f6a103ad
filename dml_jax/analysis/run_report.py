"""Presentation of a run's results: the console table, the figures, and the self-contained `report.html`."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dml_jax.analysis import (
    attention,
    curves,
    distances,
    embedding_maps,
    findings,
    heat_maps,
    html,
    retrieval,
    spectra,
)
from dml_jax.analysis.evaluated_model import EvaluatedModel
from dml_jax.analysis.findings import STANDARD_DIRECTORY, Section, Shown, Subject
from dml_jax.analysis.html import Cell, Listing, text
from dml_jax.config import Config, flatten, published
from dml_jax.errors import CheckpointError, printable
from dml_jax.evaluation import metric_table
from dml_jax.files import atomic_write, reading
from dml_jax.train.records import workdir

# All analyses by name, in the order of the report.
SUBJECTS = {
    "retrieval": Subject("Retrieved images", retrieval.findings, standard=True),
    "classes": Subject("Classes", retrieval.class_findings, standard=True),
    "components": Subject(
        "Map of the embeddings (principal components)", embedding_maps.by_components, standard=True, compared=True,
        is_map=True,
    ),
    "distances": Subject("Distances of pairs", distances.findings, standard=True, compared=True),
    "verification": Subject(
        "Verification of pairs", distances.verification_findings, distances.reason_not_to_verify, standard=True
    ),
    "overfitting": Subject(
        "Training classes beside test classes", curves.findings, by_split=False, of_run=True, compared=True
    ),
    "spectra": Subject("Geometry of the embedding space", spectra.findings, compared=True),
    "tsne": Subject("Map of the embeddings (t-SNE)", embedding_maps.by_tsne, compared=True, is_map=True),
    "attention": Subject(
        "Attention of the message passing network", attention.findings, attention.reason_not_to, by_split=False,
        of_run=True,
    ),
    "influence": Subject(
        "Influence of the batch on a prediction", attention.influence_findings, attention.reason_not_to, by_split=False,
        of_run=True,
    ),
    "heat_maps": Subject("Prototypes over the image", heat_maps.findings, heat_maps.reason_not_to, of_run=True),
}  # fmt: skip
# By control: what it is, and the start of the sentence "... better than this run".
CONTROLS = {
    "raw pixels": ("the images themselves, reduced to at most 32 x 32 pixels, without a network", "Raw pixels do"),
    "colour histogram": (
        "fractions of 192 colours (hue, saturation, value), without a network",
        "A colour histogram does",
    ),
    "untrained": ("the same network before its first training step", "The untrained network does"),
    "before training": ("the same network before its first training step", "The network before this training does"),
    "head on frozen features": (
        "all but the backbone trained on features of the published weights, before the network was trained",
        "The head on frozen features does",
    ),
    "published weights without further training": (
        "the network that the training started from, as published",
        "The published network does, without this training,",
    ),
}
CURVES = {
    "loss": "The training loss and its terms.",
    "recall": "Recall@1 during training. Training classes: a random sample of at most 2,000 images, with no "
    "more classes than the other splits. Horizontal lines: controls on the test classes.",
}


def rows(config: Config, results: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Name and metrics of each row of the result table: baselines, this run, its refined embeddings, the paper."""
    reading = f", reading {results['reading']}" if "reading" in results else ""
    ours = [(f"{config.method.name}, {results['model']} (step {results['step']}){reading}", results)]
    others = {name: numbers for name, numbers in results.get("readings", {}).items() if name != results["reading"]}
    ours += [(f"first {length} dimensions", numbers) for length, numbers in results.get("prefixes", {}).items()]
    ours += [(f"reading {name}", numbers) for name, numbers in others.items()]
    ours += [(_refined_name(kind, numbers), numbers) for kind, numbers in results.get("refined", {}).items()]
    paper = {
        name: {**metrics, "digits": metric_table.printed_digits(metrics)}
        for name, metrics in published(asdict(config)).items()
    }
    return [*results.get("controls", {}).items(), *ours, *paper.items()]


def _refined_name(kind: str, numbers: dict[str, Any]) -> str:
    """The kind of batches used for refinement, with the number of clusters and the run time, or why it failed."""
    words = f"+ {kind}" + (f" ({numbers['problem']})" if "problem" in numbers else "")
    if "clusters" in numbers:
        words += f", {numbers['clusters']:,} clusters"
    return words + (f", {numbers['seconds']:.1f} s" if "seconds" in numbers else "")


def print_results(
    title: str, listed: Sequence[tuple[str, dict[str, Any]]], results: dict[str, Any], console: Console
) -> None:
    """Prints a table of rows, by name and metrics, and the evaluation protocol below it.

    `results` is the main row, printed bold; it determines the columns and names the `protocol`.
    """
    columns = [entry for entry in metric_table.columns(results) if not entry.secondary]
    table = Table(title=escape(printable(title)), title_justify="left")
    table.add_column("", max_width=26)
    for entry in columns:
        table.add_column(entry.heading, justify="right", no_wrap=True)
    for name, numbers in listed:
        cells = (metric_table.cell(numbers, entry) for entry in columns)
        table.add_row(escape(printable(name)), *cells, style="bold" if numbers is results else "")
    console.print(table)
    console.print(results["protocol"], style="dim", markup=False)


def print_table(config: Config, results: dict[str, Any], console: Console) -> None:
    """Prints the result table of a run."""
    print_results(f"{config.name}: unseen classes, in %", rows(config, results), results, console)
    if sentence := verdict(results):
        console.print(sentence.strip(), markup=False, highlight=False)


def write(run: EvaluatedModel, results: dict[str, Any]) -> None:
    """Writes `figures/` and `report.html` of a finished run, whose test embeddings are known."""
    directory, lines = run.directory, run.metrics()
    figures = directory / STANDARD_DIRECTORY
    figures.mkdir(exist_ok=True)
    if terms := curves.loss_terms(lines):
        curves.plot_loss(figures / "loss.png", terms)
    controls = {name: numbers["recall@1"] for name, numbers in results.get("controls", {}).items()}
    curves.plot_recall(figures / "recall.png", curves.recalls(lines, results), controls)
    for name, subject in SUBJECTS.items():
        if not subject.standard:
            continue
        (directory / findings.DIRECTORY / f"{name}.json").unlink(missing_ok=True)  # from an earlier model
        if not subject.reason_not_to(run):
            found = subject.findings(run, "test")
            findings.write(directory, name, subject.title, run.step, found, to=STANDARD_DIRECTORY)
    write_page(directory, run.config, results, lines)


def write_page(directory: Path, config: Config, results: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    """Writes `report.html` from the results, the lines of `metrics.jsonl`, the figures and the stored analyses."""
    sections = {
        "Results": _results(config, results),
        "Training warnings": _warnings(lines),
        "Training": _curves(directory),
    }
    sections = {title: body for title, body in sections.items() if body}
    found = [section for section in findings.read(directory, tuple(SUBJECTS)) if section.shown]
    titles = [*sections, *dict.fromkeys(section.title for section in found), "Configuration"]
    settings = "\n".join(text(f"{key} = {value}") for key, value in flatten(asdict(config)).items())
    body = (
        f"<h1>{text(config.name)}</h1>"
        f'<p class="lead">{text(config.method.name)} on {text(config.data.name)}: image retrieval on classes not seen '
        f"in training.</p>{html.facts(_facts(directory, config, results))}{html.contents(titles)}"
        + "".join(html.heading(title) + content for title, content in sections.items())
        + "".join(_section(directory, section) for section in found)
        + f"{html.heading('Configuration')}<details><summary>All {settings.count(chr(10)) + 1} values</summary>"
        f"<pre><code>{settings}</code></pre></details>"
    )
    with atomic_write(directory / "report.html") as draft:
        draft.write_text(html.document(config.name, body), encoding="utf-8")


def write_analyses(directory: Path, title: str, lead: str) -> None:
    """Writes `report.html` from the stored analyses alone, without a training run."""
    found = [section for section in findings.read(directory, tuple(SUBJECTS)) if section.shown]
    body = (
        f'<h1>{text(title)}</h1><p class="lead">{text(lead)}</p>'
        + html.contents(list(dict.fromkeys(section.title for section in found)))
        + "".join(_section(directory, section) for section in found)
    )
    with atomic_write(directory / "report.html") as draft:
        draft.write_text(html.document(title, body), encoding="utf-8")


def _facts(directory: Path, config: Config, results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Data, training, machine, versions and seed of the run."""
    known = workdir.read_config(directory)
    timing, versions = results.get("timing", {}), known.get("versions", {})
    counts = results.get("data", {})
    sizes = [(f"{name} images", f"{size['images']:,} of {size['classes']:,} classes") for name, size in counts.items()]
    training = f"{results['step']:,} steps of {config.data.batch_size} images"
    if timing:
        training += f", {_duration(timing['seconds'])} ({timing['images_per_second']:,.0f} images/s)"
    memory = f", {timing['peak_memory'] / 2**30:.1f} GiB" if "peak_memory" in timing else ""
    return [
        *sizes,
        ("training", training),
        ("machine", results.get("machine", "") + memory if results.get("machine") else ""),
        ("commit", re.sub(r"(?<=^\w{12})\w+", "", known.get("commit") or "")),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("seed", str(config.seed)),
    ]


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s" if minutes else f"{rest} s"


def _results(config: Config, results: dict[str, Any]) -> str:
    """The results in words, the table, the meaning of its rows and columns, and the protocol."""
    columns = metric_table.columns(results)
    listed = rows(config, results)
    cells = [[Cell(name), *(Cell(metric_table.cell(numbers, entry)) for entry in columns)] for name, numbers in listed]
    ours = next(i for i, (_, numbers) in enumerate(listed) if numbers is results)
    head = ("in %", *(entry.heading for entry in columns))
    table = html.table(head, cells, "results, in %", ours=ours, sortable=False)
    rules = "".join(f"<li>{text(rule)}</li>" for rule in results["protocol"].split("; "))
    return (
        f"<p>{text(in_words(results))}</p>{table}"
        f'<p class="note">± is one standard error over the queries. {text(_explanations(results))}</p>'
        f"{_verification(results)}<h3>How it was measured</h3><ul>{rules}</ul>"
    )


def in_words(results: Mapping[str, Any]) -> str:
    """Recall@1 compared with the controls, in sentences."""
    recall = results["recall@1"]
    nearest = "gallery image" if "separate gallery" in results["protocol"] else "other image"
    words = f"For {recall:.1%} of the test images, the nearest {nearest} shows the same class (Recall@1). "
    controls = {name: numbers["recall@1"] for name, numbers in results.get("controls", {}).items()}
    if not controls:
        return words
    words += "Without this training: " + "; ".join(f"{name}, {value:.1%}" for name, value in controls.items()) + ". "
    return words + verdict(results)


def verdict(results: Mapping[str, Any]) -> str:
    """One sentence on whether a control does better than the run; empty without controls."""
    controls = results.get("controls", {})
    if not controls:
        return ""
    best = max(controls, key=lambda name: controls[name]["recall@1"])
    gains = {title: results[key] - controls[best][key] for title, key in (("Recall@1", "recall@1"), ("MAP@R", "map@r"))}
    noise = 2 * results.get("recall@1_stderr", 0)
    numbers = ", ".join(
        f"{title} {100 * controls[best][key]:.1f} against {100 * results[key]:.1f}"
        for title, key in (("Recall@1", "recall@1"), ("MAP@R", "map@r"))
    )
    if gains["Recall@1"] < -noise or (gains["Recall@1"] < 0 and gains["MAP@R"] < 0):
        return f"{CONTROLS[best][1]} better than this run: {numbers}. "
    points = ", ".join(f"{title} {100 * gain:+.1f} points" for title, gain in gains.items())
    if gains["Recall@1"] > noise:
        return f"This run does better than every control; over the best, {best}: {points}. "
    if gains["MAP@R"] > 2 * results.get("map@r_stderr", 0):
        return f"Recall@1 is not clearly better than that of {best}, but the ranking is: {points}. "
    return f"This run is not clearly better than {best}, so it does not show that the training helped: {points}. "


def _explanations(results: Mapping[str, Any]) -> str:
    """Explains the controls and the metrics."""
    controls = [f"{name}: {CONTROLS[name][0]}" for name in results.get("controls", {}) if name in CONTROLS]
    about = [
        "R@K: fraction of the queries with an image of their class among the K nearest",
        "MAP@R: how many of the nearest R images, where R is the size of the class, are of the class, and how early",
        "NMI: agreement of clusters with classes",
    ]
    return ". ".join((*controls, *about)) + "."


def _verification(results: Mapping[str, Any]) -> str:
    if "equal_error_rate" not in results:
        return ""
    return (
        f"<p>Verification of image pairs (same class or not): equal error rate {results['equal_error_rate']:.1%} at a "
        f"cosine threshold of {results['equal_error_cosine']:.3f}.</p>"
    )


def _curves(directory: Path) -> str:
    drawn = {name: directory / STANDARD_DIRECTORY / f"{name}.png" for name in CURVES}
    charts = "".join(_chart(path, name, text(CURVES[name])) for name, path in drawn.items() if path.exists())
    return f'<div class="side">{charts}</div>' if charts else ""


def _warnings(lines: Sequence[Mapping[str, Any]]) -> str:
    """Each warning of the training with the first step at which it occurred."""
    first: dict[str, tuple[int, str]] = {}
    for line in lines:
        for name, words in line.get("warnings", {}).items():
            first.setdefault(name, (line["step"], words))
    entries = "".join(f"<li>step {step}: {text(words)}</li>" for step, words in first.values())
    return f'<ul class="warnings">{entries}</ul>' if entries else ""


def _section(directory: Path, section: Section) -> str:
    """The findings of an analysis, with a heading for each if there are several."""
    parts = []
    for shown in section.shown:
        name = Path(shown.file).name
        title = name.replace("_", " ").capitalize()
        several = len(section.shown) > 1 and title != section.title
        parts.append((f"<h3>{text(title)}</h3>" if several else "") + _shown(directory, shown, name))
    return html.heading(section.title, f"(step {section.step:,})") + "".join(parts)


def _shown(directory: Path, shown: Shown, name: str) -> str:
    """The figure, optionally with a table below it, or pictures instead."""
    caption = f'{text(shown.caption)} <a href="{text(shown.file)}.csv" title="a file beside this page">Numbers</a>'
    if shown.view is None or isinstance(shown.view, Listing):
        chart = _chart(directory / f"{shown.file}.png", name, caption)
        return chart + (html.as_html(shown.view, name, caption) if shown.view else "")
    return html.as_html(shown.view, name, caption)


def _chart(path: Path, name: str, caption: str) -> str:
    """A figure on disk; `caption` is HTML."""
    with reading(path, "create it again with dml-jax analyse", CheckpointError):
        return html.chart(path.read_bytes(), name, caption)
