"""--storage and --training of `dml-jax evaluate`: Recall@1 against bytes per image."""

import argparse
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table

from dml_jax.errors import ConfigError
from dml_jax.evaluation import check_inputs, compression
from dml_jax.files import expand_path


def add_to(flags: argparse.ArgumentParser) -> None:
    """Adds the options."""
    flags.add_argument("--storage", action="store_true", help="add Recall@1 of int8 and binary codes, prefixes and PCA")
    flags.add_argument("--training", metavar="FILE", help="--storage: embeddings of other images, .npy, to fit PCA on")


def check(options: argparse.Namespace) -> None:
    """Raises ConfigError if the options do not go together."""
    if options.training and not options.storage:
        raise ConfigError("--training: is for --storage; give that too")
    if options.storage and options.metric != "cosine":
        raise ConfigError(f"--storage: compares cosines; leave out --metric={options.metric}")


def evaluate(
    options: argparse.Namespace,
    queries: np.ndarray,
    labels: Any,
    gallery: np.ndarray | None,
    gallery_labels: Any,
) -> dict[str, Any]:
    """ "storage": the rows of `compression.table`; nothing without the option."""
    if not options.storage:
        return {}
    if not isinstance(labels, np.ndarray) or labels.ndim != 1:
        raise ConfigError("--storage: needs one class per row")
    training = None
    if options.training:
        training = check_inputs.load(expand_path("--training", options.training), name="--training")
        if training.ndim != 2 or training.shape[1] != queries.shape[1]:
            raise ConfigError(
                f"--training={options.training}: has shape {list(training.shape)}; give [N, {queries.shape[1]}]"
            )
    found = compression.table(queries, labels, training, gallery=gallery, gallery_labels=gallery_labels)
    return {"storage": found}


def print_storage(rows: list[dict[str, Any]]) -> None:
    """Prints the table, most bytes first."""
    table = Table(box=box.SIMPLE, title="stored embeddings; queries are not compressed, except for Hamming distances")
    for name in ("bytes per image", "dimensions", "code", "Recall@1 in %"):
        table.add_column(name, justify="left" if name == "code" else "right")
    for row in sorted(rows, key=lambda row: -row["bytes"]):
        recall = f"{100 * row['recall@1']:.2f} ± {100 * row['recall@1_stderr']:.2f}"
        table.add_row(f"{row['bytes']:,}", f"{row['dimensions']} ({row['form']})", row["code"], recall)
    Console(highlight=False, soft_wrap=True).print(table)
