"""An analysis of several models side by side: in panels, or as curves in one."""

import math
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from dml_jax.analysis import drawing
from dml_jax.analysis.findings import Finding, Panel
from dml_jax.analysis.trained_run import TrainedRun

COLUMNS = 3  # panels side by side


def findings(runs: Mapping[str, TrainedRun], subject: Any, split: str) -> list[Finding]:
    """The findings of a subject (its module) that have a panel, each of all models together."""
    found = {name: [each for each in subject.findings(run, split) if each.panel] for name, run in runs.items()}
    made = []
    for parts in zip(*found.values(), strict=True):
        by_model = dict(zip(found, parts, strict=True))
        captions = [f"{name}: {part.caption}" for name, part in by_model.items()]
        same = len({part.caption for part in parts}) == 1
        made.append(
            Finding(
                parts[0].name,
                parts[0].caption if same else " ".join(captions),
                partial(plot, panels={name: part.panel for name, part in by_model.items()}),
                ("model", *parts[0].columns),
                [(name, *row) for name, part in by_model.items() for row in part.rows],
            )
        )
    return made


def plot(path: Path, *, panels: Mapping[str, Panel]) -> None:
    """Draws the panels of the models."""
    first = next(iter(panels.values()))
    if first.layout == "overlaid":
        figure = drawing.figure(6.5, 3.8)
        axes = figure.subplots()
        for name, panel in panels.items():
            known = len(axes.lines)
            panel.draw(axes)
            for line in axes.lines[known:]:
                line.set_label(f"{drawing.text(name)}: {line.get_label()}")
        drawing.legend(axes)
    else:
        columns = min(len(panels), COLUMNS)
        rows = math.ceil(len(panels) / columns)
        figure = drawing.figure(4.2 * columns, 3.4 * rows + 0.5)
        share = first.layout == "same axes"
        cells = figure.subplots(rows, columns, squeeze=False, sharex=share, sharey=share).ravel()
        for cell, (name, panel) in zip(cells, panels.items(), strict=False):
            panel.draw(cell)
            cell.set_title(drawing.text(name), fontsize=10)
            if share:
                cell.label_outer()
        for cell in cells[len(panels) :]:
            cell.set_axis_off()
        entries = cells[0].get_legend_handles_labels()
        figure.legend(*entries, loc="outside lower center", ncols=5, frameon=False, fontsize=8)
    drawing.save(figure, path)
