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
    """Checks the options, and opens the training embeddings, before anything is computed."""
    if options.training and not options.storage:
        raise ConfigError("--training: is for --storage; give that too")
    if options.storage and options.metric != "cosine":
        raise ConfigError(f"--storage: compares cosines; leave out --metric={options.metric}")
    options.training_rows = None
    if options.training:
        rows = check_inputs.load(expand_path("--training", options.training), name="--training")
        options.training_rows = check_inputs.embeddings(rows, name=f"--training={options.training}")


def check_size(options: argparse.Namespace, columns: int) -> None:
    """Raises ConfigError if the training embeddings have another number of columns."""
    if options.training and (found := options.training_rows.shape[1]) != columns:
        raise ConfigError(f"--training={options.training}: has {found} columns, but the embeddings have {columns}")


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
    rows = options.training_rows
    return {"storage": compression.table(queries, labels, rows, gallery=gallery, gallery_labels=gallery_labels)}


def print_storage(rows: list[dict[str, Any]]) -> None:
    """Prints the table, most bytes first."""
    table = Table(box=box.SIMPLE, title="stored embeddings; queries are not compressed, except for Hamming distances")
    for name in ("bytes per image", "dimensions", "code", "Recall@1 in %"):
        table.add_column(name, justify="left" if name == "code" else "right")
    for row in sorted(rows, key=lambda row: -row["bytes"]):
        recall = f"{100 * row['recall@1']:.2f} ± {100 * row['recall@1_stderr']:.2f}"
        table.add_row(f"{row['bytes']:,}", f"{row['dimensions']} ({row['form']})", row["code"], recall)
    Console(highlight=False, soft_wrap=True).print(table)
