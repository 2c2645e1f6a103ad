"""Opens a run for the figures of its paper, and adds them to its report."""

import argparse
from collections.abc import Mapping

import numpy as np

from dml_jax import analyses, files
from dml_jax import run as trained_runs
from dml_jax.analysis import findings, run_report
from dml_jax.analysis.analysed_model import AnalysedModel
from dml_jax.analysis.findings import DIRECTORY, Finding
from dml_jax.console import Console
from dml_jax.data import transforms
from dml_jax.errors import UserError
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import workdir


def parser(description: str | None) -> argparse.ArgumentParser:
    """A command line that names a run."""
    formatter = argparse.RawDescriptionHelpFormatter
    flags = argparse.ArgumentParser(description=description, formatter_class=formatter)
    flags.add_argument("run", help="work directory")
    flags.add_argument("--checkpoint", default="reported", help="reported, latest, best or a step")
    flags.add_argument("--data", help="directory of the run's data, if it has moved")
    return flags


def load(run: str, options: argparse.Namespace) -> tuple[Experiment, AnalysedModel]:
    """A run with its data, at the checkpoint of the options."""
    console, moved = Console(), {"data.path": options.data} if options.data else {}
    try:
        config, directory = analyses.run_config(run, moved, trust_code=False)
        experiment, state = trained_runs.restore(config, directory, options.checkpoint, console)
    except UserError as error:
        raise SystemExit(f"error: {error}") from error
    model = experiment.model(state)
    return experiment, trained_runs.evaluated(experiment, model, directory, console)


def images(run: AnalysedModel, split: str, indices: np.ndarray) -> np.ndarray:
    """Images of a split, cropped as for evaluation: uint8 [n, H, W, 3]."""
    transform, read = transforms.evaluation(run.config.data), run.split(split).read
    return np.stack([transform(read(int(i), None)) for i in indices])


def write(
    run: AnalysedModel, figures: Mapping[str, tuple[str, Mapping[str, list[Finding]]]]
) -> None:
    """Writes figures by name, each with its heading and by model, and their numbers into a run."""
    directory = run.directory
    with (
        files.locked(directory / DIRECTORY, wait=False),
        workdir.updated(directory, f"{DIRECTORY}/"),
    ):
        for name, (title, found) in figures.items():
            findings.write_analysis(directory, name, title, run.step, found)
    run.console.print(f"figures and numbers: {directory / DIRECTORY}")
    if results := workdir.read_results(directory):
        with workdir.updated(directory, "report.html"):
            run_report.write_page(directory, run.config, results)
