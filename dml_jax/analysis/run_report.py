"""Presents a run's results: console table, figures, and the self-contained `report.html`."""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich.console import Console

from dml_jax.analysis import curves, embedding_maps, findings, html, retrieval, spectra, text_tables
from dml_jax.analysis.analysed_model import AnalysedModel
from dml_jax.analysis.findings import STANDARD_DIRECTORY, Finding
from dml_jax.analysis.html import Section, text
from dml_jax.analysis.text_tables import Table
from dml_jax.config import Config, flatten, published
from dml_jax.errors import printable
from dml_jax.evaluation import metric_table
from dml_jax.train import model_metrics, selection
from dml_jax.train.controls import PUBLISHED
from dml_jax.train.records import workdir
from dml_jax.train.records.logs import JsonLines

# All analyses in the order of the report: heading, and a function that returns the findings.
ANALYSES: dict[str, tuple[str, Callable[[AnalysedModel, str], list[Finding]]]] = {
    "retrieval": ("Retrieved images", retrieval.findings),
    "classes": ("Classes", retrieval.class_findings),
    "components": ("Map of the embeddings (principal components)", embedding_maps.by_components),
    "overfitting": ("Training and test classes", curves.overfitting),
    "spectra": ("Geometry of the embedding space", spectra.findings),
    "tsne": ("Map of the embeddings (t-SNE)", embedding_maps.by_tsne),
}
STANDARD = ("retrieval", "classes", "components")  # in the report of every run
MAPS = ("components", "tsne")  # can show selected classes
RUN_ONLY = ("overfitting",)  # need a run and use all of its splits
CONTROLS = {
    "raw pixels": "the images, scaled down to at most 32 x 32 pixels, without a network",
    "colour histogram": "fractions of 192 colours (hue, saturation, value), without a network",
    **dict.fromkeys(("untrained", "before training"), "the network before its first training step"),
    PUBLISHED: "the network before this training, as published",
}
KEYS = {"Recall@1": "recall@1", "MAP@R": "map@r"}
CANDIDATES = {
    selection.PUBLISHED: "published weights",
    selection.LAYER: "closed-form layer",
    selection.HALFWAY: "mean of layer and trained",
    selection.TRAINED: "trained network",
}
TRAINING = "training"  # the curves, which `analyse` does not compute


def rows(config: Config, results: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Name and metrics of each row of the table: controls, this run, its variants, the paper."""
    variant = f", variant {results['test_variant']}" if "test_variant" in results else ""
    model = CANDIDATES[results["choice"]["kept"]] if "choice" in results else results["model"]
    # Candidates differ in their steps.
    step_text = "" if "choice" in results else f" (step {results['step']})"
    ours = f"{config.method.name}, {model}{step_text}{variant}"
    entries = [*results.get("controls", {}).items(), (ours, results)]
    for name, numbers in results.get("test_variants", {}).items():
        if name != results["test_variant"]:
            entries.append((f"variant {name}", numbers))
    for kind, numbers in results.get("refined", {}).items():
        entries.append((_refined_name(kind, numbers), numbers))
    for name, metrics in published(asdict(config)).items():
        digits = {"digits": metric_table.printed_digits(metrics)}
        entries.append((name + _difference_text(results, metrics), {**metrics, **digits}))
    return entries


def _difference_text(results: Mapping[str, Any], published: Mapping[str, float]) -> str:
    """The difference from a published Recall@1 in combined standard errors; empty if unknown."""
    if not (error := published.get("recall@1_stderr")):
        return ""
    combined = math.hypot(error, results["recall@1_stderr"])
    distance = (results["recall@1"] - published["recall@1"]) / combined
    return f" (ours differs by {distance:+.1f} combined standard errors)"


def _refined_name(kind: str, numbers: dict[str, Any]) -> str:
    """A refinement's name, number of clusters and run time, or its problem."""
    words = f"+ {kind}" + (f" ({numbers['problem']})" if "problem" in numbers else "")
    if "clusters" in numbers:
        words += f", {numbers['clusters']:,} clusters"
    return words + (f", {numbers['seconds']:.1f} s" if "seconds" in numbers else "")


def print_table(config: Config, results: dict[str, Any], console: Console) -> None:
    """Prints the result table of a run, its protocol and a summary."""
    entries = [entry for entry in metric_table.columns(results) if not entry.secondary]
    names, metrics_by_row = zip(*rows(config, results), strict=True)
    columns = {"": list(map(printable, names))}
    columns |= {e.heading: [metric_table.cell(row, e) for row in metrics_by_row] for e in entries}
    ours = {(heading, metrics_by_row.index(results)) for heading in columns}
    title = printable(f"{config.name}: {config.data.tested}, in %")
    text_tables.print_table(Table(title, [results["protocol"]], columns, ours), console)
    console.print(lead(config, results), markup=False, highlight=False)


def write(run: AnalysedModel, results: dict[str, Any]) -> None:
    """Writes `figures/` and `report.html` of a finished run, whose test embeddings are known."""
    directory, lines = run.directory, JsonLines(run.directory / "metrics.jsonl").read()
    analyses = {TRAINING: ("Training", curves.training(lines, results))}
    analyses |= {name: (ANALYSES[name][0], ANALYSES[name][1](run, "test")) for name in STANDARD}
    for name, (title, section_findings) in analyses.items():
        outdated = directory / findings.DIRECTORY / f"{name}.json"
        outdated.unlink(missing_ok=True)
        findings.write_analysis(
            directory, name, title, run.step, {"": section_findings}, to=STANDARD_DIRECTORY
        )
    write_page(directory, run.config, results)


def write_page(directory: Path, config: Config, results: dict[str, Any]) -> None:
    """Writes `report.html` from the results and the stored analyses."""
    settings = flatten(asdict(config))
    settings_text = "\n".join(text(f"{key} = {value}") for key, value in settings.items())
    summary = f"<summary>All {len(settings)} values</summary>"
    details = f"<details>{summary}<pre><code>{settings_text}</code></pre></details>"
    facts = [fact for fact in _facts(directory, config, results) if fact[1]]
    table = html.table(("", "this run"), facts, "data, machine and versions")
    html.write_report(
        directory / "report.html",
        config.name,
        lead(config, results),
        (
            Section("Results", html.worth(results.get("worth", ())) + _results(config, results)),
            *findings.read_sections(directory, (TRAINING, *ANALYSES)),
            Section("How this run was made", table + details),
        ),
    )


def lead(config: Config, results: Mapping[str, Any]) -> str:
    """A summary: the result, its gain over published weights or the best control, the choice."""
    controls, choice = results.get("controls", {}), results.get("choice")
    if _is_undefined(results["recall@1"]):
        return "No test image has a relevant image to retrieve, so nothing was measured."
    words = f"{config.method.name} on {config.data.tested}: {_metrics(results)}"
    if controls and not results["protocol"].startswith(model_metrics.TRAINED_ON):
        best = max(controls, key=lambda name: controls[name]["recall@1"])
        reference = PUBLISHED if PUBLISHED in controls else best
        gains = [100 * (results[key] - controls[reference][key]) for key in KEYS.values()]
        words += f" ({gains[0]:+.1f} and {gains[1]:+.1f} points over {reference})"
        if controls[best]["recall@1"] > results["recall@1"]:
            words += f"; the control '{best}' is better: {_metrics(controls[best])}"
    if not choice:
        return f"{words}."
    on_unseen = choice["unseen"]
    best = max(on_unseen, key=lambda name: sum(on_unseen[name].values()))
    words += f". Selected on folds of the training classes: {CANDIDATES[choice['kept']]}"
    if best == choice["kept"]:
        return f"{words}, which is also the best of the four candidates on the unseen classes."
    better = f"{CANDIDATES[best]}, {_metrics(on_unseen[best])}"
    return f"{words}; on the unseen classes, another candidate would be better: {better}."


def _metrics(results: Mapping[str, float]) -> str:
    return ", ".join(f"{title} {results[key]:.1%}" for title, key in KEYS.items())


def _facts(directory: Path, config: Config, results: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Data, training, machine, versions and seed of the run."""
    record = workdir.read_config(directory)
    timing, versions = results.get("timing", {}), record.get("versions", {})
    data, size = results.get("data", {}), "{images:,} of {classes:,} classes"
    sizes = [(f"{name} images", size.format(**counts)) for name, counts in data.items()]
    training = f"{results['step']:,} steps of {config.data.batch_size} images"
    if timing:
        duration, speed = timedelta(seconds=round(timing["seconds"])), timing["images_per_second"]
        training += f", {duration} h ({speed:,.0f} images/s)"
    memory = f", {timing['peak_memory'] / 2**30:.1f} GiB" if "peak_memory" in timing else ""
    return [
        *sizes,
        ("training", training),
        ("machine", results.get("machine", "") + memory if results.get("machine") else ""),
        ("commit", re.sub(r"(?<=^\w{12})\w+", "", record.get("commit") or "")),
        ("versions", ", ".join(f"{name} {version}" for name, version in versions.items())),
        ("seed", str(config.seed)),
    ]


def _results(config: Config, results: dict[str, Any]) -> str:
    """The table of results, explanations of its rows and columns, and the protocol."""
    columns = metric_table.columns(results)
    entries = rows(config, results)
    cells = [[name, *(metric_table.cell(row, entry) for entry in columns)] for name, row in entries]
    ours = [numbers for _, numbers in entries].index(results)
    head = ("in %", *(entry.heading for entry in columns))
    table = html.table(head, cells, "results, in %", ours=ours)
    rules = "".join(f"<li>{text(rule)}</li>" for rule in results["protocol"].split("; "))
    return (
        f'{table}<p class="note">± is one standard error over the queries. '
        f"{text(_explanations(results))}</p>{_choice(config, results)}"
        f"<h3>How it was measured</h3><ul>{rules}</ul>"
    )


def _choice(config: Config, results: Mapping[str, Any]) -> str:
    """The candidates for the reported model, and the option that selects another one; empty without
    candidates."""
    if not (choice := results.get("choice")):
        return ""
    cells = []
    for name, on_folds in choice["training"].items():
        on_unseen = choice["unseen"][name]
        metrics = (
            f"{100 * part[key]:.1f}" for part in (on_folds, on_unseen) for key in KEYS.values()
        )
        gain = f"{100 * on_folds['gain']:+.1f} ± {100 * on_folds['gain_stderr']:.1f}"
        option = "–" if name == selection.PUBLISHED else name
        label = CANDIDATES[name] + (" (selected)" if name == choice["kept"] else "")
        cells.append([label, *metrics, gain, option if name != choice["kept"] else "reported"])
    head = [
        "candidate",
        *(f"{key} {source}" for source in ("folds", "unseen") for key in ("R@1", "MAP@R")),
    ]
    ours = list(choice["training"]).index(choice["kept"])
    table = html.table([*head, "gain", "--checkpoint"], cells, "candidates, in %", ours=ours)
    return (
        f"<h3>Candidates for the reported model</h3>{table}"
        f'<p class="note">In %. Folds: the {choice["classes"]} training classes, each measured by '
        "a network that was trained on the other half. Gain: the difference from published weights "
        "in the mean of both metrics, averaged over these classes; ± is one standard error. The "
        "candidate with the largest gain is selected, unless published weights are better by half "
        "a standard error. The unseen classes do not affect the choice. To use another candidate, "
        "add "
        "<code>--checkpoint</code>, e.g. <code>dml-jax embed --model=RUN --checkpoint=layer"
        "</code>; the published weights are "
        f"<code>--model={text(config.backbone.pretrained)}</code>.</p>"
    )


def _is_undefined(value: float | None) -> bool:
    """Whether a metric is undefined because there are no queries: NaN, or null in a file."""
    return value is None or math.isnan(value)


def _explanations(results: Mapping[str, Any]) -> str:
    """Explains the controls and the metrics."""
    present = [name for name in results.get("controls", {}) if name in CONTROLS]
    return ". ".join(
        (
            *(f"{name.capitalize()}: {CONTROLS[name]}" for name in present),
            "R@K: fraction of queries with an image of their class among the K nearest",
            "MAP@R: how many of the R nearest images are of the class and how early; R is the size "
            "of the class",
            "NMI: agreement of clusters with classes.",
        )
    )
