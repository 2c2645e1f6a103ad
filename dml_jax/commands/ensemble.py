"""Evaluates several runs and their ensemble, whose embedding is the concatenation of the members' embeddings:

    dml-jax ensemble runs/a runs/b [runs/c …] [--output=runs/abc] [--weights=1,2,2] [--split=test]

Reads the embeddings that the runs have exported for the same images. The ensemble concatenates the members' unit rows
and divides by the square root of the number of members, so the cosine of two images is the mean of the members'
cosines (Seidenschwarz et al., ICML 2021, sec. 4.4); with weights w, the mean weighted by w². With --output, the
ensemble's embeddings and results.json are written in the same layout as those of a run.
"""

import json
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from dml_jax import files
from dml_jax.analysis import run_report
from dml_jax.commands import cli
from dml_jax.config.evaluation import Evaluation
from dml_jax.config.fields import validate
from dml_jax.console import Console
from dml_jax.errors import ConfigError, DataError, printable
from dml_jax.evaluation import protocol
from dml_jax.export import embedding_files, query_results
from dml_jax.export.embedding_files import Exported
from dml_jax.train.records import workdir


def parser() -> cli.Parser:
    """The options of the command."""
    flags = cli.Parser(__doc__)
    flags.add_argument("runs", nargs="*", metavar="RUN", help="work directories, two or more")
    flags.add_argument("--output", metavar="DIRECTORY", help="write embeddings/<split> and results.json here")
    flags.add_argument("--weights", help="of the runs' embeddings, e.g. 1,2,2,2; default: all 1")
    flags.add_argument("--split", default="test", help="split to evaluate (default: test)")
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line and the arrays, evaluates, prints the table and writes the output."""
    options = parser().read_plain(arguments, "dml-jax ensemble")
    runs = [files.expand_path("RUN", name) for name in options.runs]
    if len(runs) < 2:
        raise ConfigError("RUN: give the work directories of two or more runs, e.g. runs/a runs/b")
    twice = next((run for i, run in enumerate(runs) if run.resolve() in [r.resolve() for r in runs[:i]]), None)
    if twice is not None:
        raise ConfigError(f"{twice}: is given twice; name each run once")
    absent = next((run for run in runs if not run.is_dir()), None)
    if absent is not None:
        raise ConfigError(f"{absent}: there is no such directory")
    output = files.expand_path("--output", options.output) if options.output else None
    weights = parse_weights(options.weights, len(runs))

    splits = [options.split]
    if options.split == "test" and any((run / "embeddings" / "gallery").exists() for run in runs):
        splits.append("gallery")
    if output is not None:
        check_output(output, runs, splits)
    members = {split: [embedding_files.read(run / "embeddings" / split) for run in runs] for split in splits}
    labels = {
        split: common_labels([run / "embeddings" / split for run in runs], exported)
        for split, exported in members.items()
    }
    combined = {
        split: concatenated([member.embeddings for member in exported], weights) for split, exported in members.items()
    }
    selected = {workdir.read_config(run)["config"]["train"]["select"] for run in runs}
    unstated, stated = evaluation_settings(runs)

    def metrics(embeddings: dict[str, np.ndarray], *, per_query: bool = False) -> dict[str, Any]:
        return protocol.evaluate(
            embeddings[options.split], labels[options.split], per_query=per_query, gallery=embeddings.get("gallery"),
            gallery_labels=labels.get("gallery"), **unstated, **stated,
        )  # fmt: skip

    of_members = {
        str(run): metrics({split: exported[i].embeddings for split, exported in members.items()})
        for i, run in enumerate(runs)
    }
    results = metrics(combined, per_query=True)
    queries = query_results.split_off(results)
    results["protocol"] = protocol.description(
        classes=len(set(labels[options.split].tolist())), gallery="gallery" in splits, **stated
    )
    # One member that was selected on the test classes makes the results of all optimistic.
    results["model"] = "test" if "test" in selected else " and ".join(sorted(selected))
    results["members"] = of_members
    rows = [*of_members.items(), (f"ensemble of {len(runs)}", results)]
    run_report.print_results("unseen classes, in %", rows, results, Console(quiet=True).rich)
    if output is not None:
        for split, exported in members.items():
            embedding_files.write(
                output / "embeddings" / split, combined[split], labels[split], exported[0].ids,
                config_hash=None, step=None,
                finished=all(member.manifest.get("finished", True) for member in exported),
                members=[member.manifest for member in exported], metadata=exported[0].metadata,
            )  # fmt: skip
        query_results.write(output, queries)
        files.write_json(output / "results.json", results)
        where = printable(str(output / "embeddings"))
        print(f"embeddings with {combined[options.split].shape[1]} dimensions: {where}")


def check_output(output: Path, runs: list[Path], splits: list[str]) -> None:
    """Raises UserError unless the directory is new, empty, or holds an earlier ensemble, which may be replaced."""
    if output.exists() and not output.is_dir():
        raise ConfigError(f"--output={output}: is a file; give a directory")
    if (output / "config.json").exists() or output.resolve() in [run.resolve() for run in runs]:
        raise ConfigError(f"--output={output}: holds a run or is a member; give another directory")
    entries = {entry.name for entry in output.iterdir()} if output.exists() else set()
    if entries and not {"embeddings"} <= entries <= {"embeddings", "queries.npz", "results.json"}:
        raise ConfigError(f"--output={output}: is not empty; give another directory")
    for split in splits:
        embedding_files.check_replaceable(output / "embeddings" / split)


def common_labels(directories: list[Path], exported: list[Exported]) -> np.ndarray:
    """The labels int [N] of the images; raises DataError unless all members hold the same images and labels."""
    first = exported[0]
    if first.labels is None:
        raise DataError(f"{directories[0]}: holds no labels.npy; embeddings cannot be evaluated without labels")
    for directory, other in zip(directories[1:], exported[1:], strict=True):
        pair = f"{directories[0]} and {directory}"
        if len(first.ids) != len(other.ids):
            raise DataError(
                f"{pair}: hold {len(first.ids)} and {len(other.ids)} images; an ensemble needs the same images"
            )
        row = next((i for i, (a, b) in enumerate(zip(first.ids, other.ids, strict=True)) if a != b), None)
        if row is not None:
            raise DataError(
                f"{pair}: hold different images, {json.dumps(first.ids[row])} and {json.dumps(other.ids[row])} in row "
                f"{row}; an ensemble needs the same images in the same order"
            )
        if other.labels is None or not np.array_equal(first.labels, other.labels):
            raise DataError(f"{pair}: hold the same images with different labels; export both from the same data set")
    return first.labels


def evaluation_settings(runs: list[Path]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of `protocol.evaluate` that the runs share: those of its own, and those of `description`, too.

    Raises ConfigError if the runs were evaluated with different settings.
    """

    def read(run: Path) -> Evaluation:
        """With the defaults of options that the run's version lacked."""
        return validate(Evaluation, workdir.read_config(run)["config"]["evaluation"], f"{run}: evaluation")

    first = read(runs[0])
    kmeans = [field.name for field in fields(first) if field.name.startswith("kmeans")]
    for run in runs[1:]:
        other = read(run)
        for key in ("protocol", "cluster", "ks", "nmi_average", "full_ranking", "lone_queries", *kmeans):
            here, there = getattr(first, key), getattr(other, key)
            if here != there:
                raise ConfigError(
                    f"evaluation.{key}: is {here!r} in {runs[0]} and {there!r} in {run}; an ensemble needs "
                    "runs with the same evaluation settings"
                )
    stated = {"protocol": first.protocol, "cluster": first.cluster, "average": first.nmi_average, **first.kmeans}
    stated |= {"lone_queries": first.lone_queries}
    return {"ks": first.ks, "full_ranking": first.full_ranking}, stated


def parse_weights(text: str | None, members: int) -> list[float]:
    """The members' weights in "1,2,2", all 1 without text; raises ConfigError unless there is one for each member."""
    if text is None:
        return [1.0] * members
    rule = f"{members} positive numbers, one for each run, e.g. 1,2"
    weights = cli.numbers("--weights", text, float, rule, lambda weight: 0 < weight < math.inf)
    if len(weights) != members:
        raise ConfigError(f"--weights={text}: must be {rule}")
    return list(weights)


def concatenated(embeddings: list[np.ndarray], weights: list[float]) -> np.ndarray:
    """Unit rows of k models, each [N, D_i], weighted, as unit rows [N, D_1 + … + D_k]."""
    norm = math.hypot(*weights)
    scaled = [rows * np.float32(weight / norm) for rows, weight in zip(embeddings, weights, strict=True)]
    return np.concatenate(scaled, axis=1)
