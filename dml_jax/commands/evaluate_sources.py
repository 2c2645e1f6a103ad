"""Embeddings and labels that `dml-jax evaluate` compares: of files, of a model's images, or stored by runs."""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dml_jax import files
from dml_jax.commands import cli, runtime
from dml_jax.data import formats, sessions
from dml_jax.data.split import Split, unread
from dml_jax.errors import DataError, counted
from dml_jax.evaluation import check_inputs
from dml_jax.export import embedding_files
from dml_jax.export.embedding_files import Exported
from dml_jax.inference import large_search
from dml_jax.inference.large_search import Table


@dataclass
class Source:
    """Embeddings of queries, and of the gallery that they search; without one they search each other."""

    queries: np.ndarray  # [Q, D]
    labels: Any  # [Q], `check_inputs.Classes` or None
    gallery: np.ndarray | None = None  # [G, D]
    gallery_labels: Any = None
    groups: dict[str, Any] = field(default_factory=dict)  # `groups` and `gallery_groups` of `metrics.retrieval`


def combine(embeddings: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """Unit rows of k models, each [N, D_i], weighted, as unit rows [N, D_1 + … + D_k]."""
    norm = math.hypot(*weights)
    return np.concatenate(
        [rows * np.float32(weight / norm) for rows, weight in zip(embeddings, weights, strict=True)], axis=1
    )


def stored(model: str) -> tuple[list[Path], dict[str, list[Exported]]]:
    """The runs that --model names and their embeddings by split: "test" and, if there is one, "gallery".

    Raises UserError unless all runs embedded the same images.
    """
    names = [model] if Path(model).is_dir() else model.split(",")
    runs = [files.expand_path("--model", name) for name in names]
    for run in runs:
        is_run = (run / "config.json").is_file()
        cli.require(is_run, f"--model={run}: is not the work directory of a run; to embed images, give --data")
    splits = ["test"] + ["gallery"] * any((run / "embeddings" / "gallery").exists() for run in runs)
    exported = {split: [embedding_files.read(run / "embeddings" / split) for run in runs] for split in splits}
    for first, *others in exported.values():
        for run, part in zip(runs, (first, *others), strict=True):
            if first.labels is None or part.labels is None:
                raise DataError(f"{run}: holds no labels.npy; embeddings cannot be evaluated without labels")
            same = first.ids == part.ids and np.array_equal(first.labels, part.labels)
            cli.require(same, f"{runs[0]} and {run}: hold different images or labels; give runs of the same images")
    return runs, exported


def session_groups(session: str, exported: dict[str, list[Exported]]) -> dict[str, Any]:
    """The sessions of stored embeddings, from the column of the run's `data.session` or as --session says."""
    splits: dict[str, Split] = {}
    for name, (part, *_) in sorted(exported.items()):  # the gallery first
        split = Split(np.zeros(len(part.ids)), part.ids, unread, (), splits.get("gallery"), metadata=part.metadata)
        splits[name] = sessions.added(split, session) if session else split
    return sessions.groups(splits["test"])


def of_images(options: argparse.Namespace) -> Source:
    """Embeds labelled images with a model."""
    path = files.expand_path("--data", options.data)
    model = runtime.load(options)
    split = formats.load_labelled(path, model.config.data, options.session)
    if not options.quiet:
        print(f"embedding {counted(len(split.labels), 'image')} of {counted(len(split.classes), 'class')}", flush=True)
    queries = model.embed_split(split)
    groups = sessions.groups(split)
    if split.gallery is None:
        return Source(queries, split.labels, groups=groups)
    return Source(queries, split.labels, model.embed_split(split.gallery), split.gallery.labels, groups)


def of_files(options: argparse.Namespace) -> Source:
    """Opens the files that the options name, memory-mapped."""
    rows, labels = _rows_and_labels(options, "embeddings", "labels")
    source = Source(rows, labels)
    groups = {key: _classes(options, key) for key in ("groups", "query_groups") if getattr(options, key)}
    if options.query_embeddings:
        source = Source(*_rows_and_labels(options, "query_embeddings", "query_labels"), rows, labels)
        groups = {"groups": groups["query_groups"], "gallery_groups": groups["groups"]} if groups else {}
    source.groups = groups
    return source


def of_parts(options: argparse.Namespace) -> tuple[tuple[Table, np.ndarray], tuple[Table, np.ndarray] | None]:
    """Parquet files and labels of the gallery and, if there are any, of the queries."""

    def read(embeddings: str, labels: str) -> tuple[Table, np.ndarray]:
        rows = large_search.table(getattr(options, embeddings), f"--{embeddings}")
        given = np.asarray(_classes(options, labels))
        return rows, check_inputs.labels(given, sum(rows.rows), name=f"--{labels}", of=f"--{embeddings}")

    gallery = read("embeddings", "labels")
    if not options.query_embeddings:
        return gallery, None
    queries = read("query_embeddings", "query_labels")
    check_inputs.check_same_kind(queries[1], gallery[1])
    cli.require(queries[0].dimensions == gallery[0].dimensions, "--query_embeddings: are of another model")
    return gallery, queries


def _rows_and_labels(options: argparse.Namespace, embeddings: str, labels: str) -> tuple[np.ndarray, Any]:
    path, name = files.expand_path(f"--{embeddings}", getattr(options, embeddings)), f"--{embeddings}"
    points = check_inputs.embeddings(check_inputs.load(path, name=name), name=name)
    return points, check_inputs.classes(_classes(options, labels), len(points), name=f"--{labels}", of=name)


def _classes(options: argparse.Namespace, key: str) -> np.ndarray | list[list[str]]:
    """Classes from a `.npy` file, a text file with one per line, or a `.tsv` file with any number per line, by tabs."""
    path, name = files.expand_path(f"--{key}", getattr(options, key)), f"--{key}"
    if path.suffix == ".npy":
        return check_inputs.load(path, name=name)
    if path.suffix == ".tsv":
        return [[word for word in line.split("\t") if word] for line in check_inputs.text_lines(path, name=name)]
    return check_inputs.read_lines(path, name=name)
