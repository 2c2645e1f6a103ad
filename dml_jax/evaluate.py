"""Judges the embeddings of any model:

    python -m dml_jax.evaluate --embeddings=embeddings.npy --labels=labels.npy [--output=results.json]
    python -m dml_jax.evaluate --embeddings=gallery.npy --labels=gallery_labels.npy
                               --query_embeddings=queries.npy --query_labels=query_labels.npy

Embeddings are [N, D] real numbers and may be larger than the memory; labels are [N] integers. Without queries every
row searches all the others. --rerank and --expand judge the rankings once more after k-reciprocal re-ranking and query
expansion, beside the plain ones; both hold the embeddings in memory.
"""

import json
import math
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dml_jax import cli, files, rerank_options
from dml_jax.errors import ConfigError, DataError

KS = (1, 2, 4, 8, 10, 100, 1000)
CHOICES = {
    "metric": ("cosine", "euclidean"),
    "protocol": ("clean", "paper"),
    "nmi_average": ("arithmetic", "geometric"),
}


def parser() -> cli.Parser:
    """The options of the command."""
    flags = cli.Parser(__doc__)
    flags.add_argument("--embeddings", metavar="FILE", help=".npy, [N, D]")
    flags.add_argument("--labels", metavar="FILE", help=".npy, [N] integers")
    flags.add_argument("--query_embeddings", metavar="FILE", help="queries that search the embeddings")
    flags.add_argument("--query_labels", metavar="FILE", help="their labels")
    flags.add_argument("--ks", metavar="K,K,…", help=f"of Recall@K (default: {','.join(map(str, KS))}, where possible)")
    flags.add_argument("--metric", default="cosine", help="cosine (default) or euclidean")
    flags.add_argument("--protocol", default="clean", help="clean, or paper: first neighbour left out, as the authors")
    flags.add_argument("--nmi_average", default="arithmetic", help="arithmetic, or geometric, as HIST's code")
    flags.add_argument("--no_clustering", action="store_true", help="no k-means and NMI")
    flags.add_argument("--restarts", type=int, help="of k-means (default: 10, and 1 above 1000 classes)")
    flags.add_argument("--seed", type=int, default=0, help="of k-means")
    flags.add_argument(
        "--rerank", action="store_true", help="also by k-reciprocal re-ranking (Zhong et al., CVPR 2017)"
    )
    flags.add_argument("--k1", type=int, help="of re-ranking: size of neighbourhoods (default: 20)")
    flags.add_argument("--k2", type=int, help="of re-ranking: nearest encodings that are averaged (default: 6)")
    flags.add_argument("--weight", type=float, help="of re-ranking: share of the plain distance (default: 0.3)")
    flags.add_argument("--expand", help="also by query expansion: aqe, or alpha")
    flags.add_argument("--expand_by", type=int, help="of expansion: gallery rows added to a query (default: 10)")
    flags.add_argument("--alpha", type=float, help="of --expand=alpha: power of their cosine (default: 3)")
    flags.add_argument("--augment", action="store_true", help="of expansion: expand the gallery's rows first")
    flags.add_argument("--geometry", action="store_true", help="also density, spectral decay and uniformity")
    flags.add_argument("--memory", type=int, metavar="MIB", help="that may be used on a device")
    flags.add_argument("--output", metavar="FILE", help="JSON to write")
    flags.add_argument("--quiet", action="store_true", help="the table, no progress")
    return flags


def wanted(text: str | None) -> tuple[int, ...] | None:
    """The numbers of `--ks`.

    Raises:
      ConfigError: not positive integers separated by commas.
    """
    if text is None:
        return None
    try:
        ks = tuple(dict.fromkeys(int(k) for k in text.split(",")))
    except ValueError:
        ks = ()
    if not ks or min(ks) < 1:
        raise ConfigError(f"--ks={text}: give positive numbers separated by commas, e.g. --ks=1,10,100")
    return ks


def execute(arguments: list[str]) -> None:
    """Reads the command line, judges, shows and writes.

    Raises:
      UserError: what the user can mend.
    """
    options, overrides = parser().read(arguments)
    if overrides:
        raise ConfigError(f"--config.{min(overrides)}: dml_jax.evaluate has no configuration")
    for key in ("embeddings", "labels"):
        if not getattr(options, key):
            raise ConfigError(f"--{key}: missing; e.g. --embeddings=embeddings.npy --labels=labels.npy")
    if bool(options.query_embeddings) != bool(options.query_labels):
        raise ConfigError("--query_embeddings and --query_labels: give both or neither")
    for key, known in CHOICES.items():
        if getattr(options, key) not in known:
            raise ConfigError(f"--{key}={getattr(options, key)}: must be {' or '.join(known)}")
    for key in ("restarts", "memory"):
        if getattr(options, key) is not None and getattr(options, key) < 1:
            raise ConfigError(f"--{key}={getattr(options, key)}: must be positive")
    if not 0 <= options.seed < 1 << 31:
        raise ConfigError(f"--seed={options.seed}: must be in 0..{(1 << 31) - 1}")
    rerank_options.check(options)
    ks = wanted(options.ks)
    output = cli.file_to_write("--output", options.output)

    started = time.monotonic()
    result = judged(options, ks)
    result["seconds"] = round(time.monotonic() - started, 3)
    if output is not None:
        output.write_text(json.dumps(finite(result), indent=2, allow_nan=False) + "\n")
    show(result, output)


def finite(value: Any) -> Any:
    """Numbers that do not exist as None, which JSON has a word for."""
    if isinstance(value, dict):
        return {key: finite(each) for key, each in value.items()}
    return None if isinstance(value, float) and math.isnan(value) else value


def judged(options: Any, ks: tuple[int, ...] | None) -> dict[str, Any]:
    """The metrics, how they were made, and of what.

    Raises:
      DataError: files that cannot be used.
    """
    import numpy as np

    from dml_jax.console import Console
    from dml_jax.evaluation import metrics, protocol, validation

    def opened(name: str, file: str) -> np.ndarray:
        return validation.load(files.expand_path(f"--{name}", file), name=f"--{name}")

    points = validation.embeddings(opened("embeddings", options.embeddings), name="--embeddings")
    labels = validation.labels(opened("labels", options.labels), len(points), name="--labels", of="--embeddings")
    given: dict[str, Any] = {}
    if options.query_embeddings:
        given = {"gallery": points, "gallery_labels": labels}
        queries = validation.embeddings(opened("query_embeddings", options.query_embeddings), name="--query_embeddings")
        validation.same_width(queries, points)
        points, labels = (
            queries,
            validation.labels(
                opened("query_labels", options.query_labels),
                len(queries),
                name="--query_labels",
                of="--query_embeddings",
            ),
        )
    elif len(points) < 2:
        raise DataError("--embeddings: has one row; give at least two, or queries")
    candidates = len(given["gallery"]) if given else len(points) - 1
    if ks is not None and max(ks) > candidates:
        raise ConfigError(f"--ks={options.ks}: there are {candidates} candidates; no K may be larger")
    rerank_options.fit(options, len(points), len(given["gallery"]) if given else None)
    classes = len(np.unique(labels))

    console = Console(quiet=options.quiet)

    def bar(what: str) -> Callable[[int, int], None]:
        begun = 0

        def progress(done: int, total: int) -> None:
            nonlocal begun
            if begun != total or done == 1:  # the first part, with the compilation in it, says nothing of the rest
                console.begin(what, total, done)
                begun = total
            else:
                console.advance(done, f"{done / total:.0%}")

        return progress

    manner: dict[str, Any] = {
        "cluster": not options.no_clustering,
        "seed": options.seed,
        "restarts": options.restarts,
        "average": options.nmi_average,
        "metric": options.metric,
    }
    with console:
        found: dict[str, Any] = protocol.evaluate(
            points,
            labels,
            ks=KS if ks is None else ks,
            protocol=options.protocol,
            memory=None if options.memory is None else options.memory << 20,
            announce=None if options.quiet else console.say,
            progress=bar("retrieval"),
            cluster_progress=bar("k-means, iterations at most"),
            **manner,
            **given,
        )
        found |= rerank_options.evaluated(
            options,
            points,
            labels,
            given.get("gallery"),
            given.get("gallery_labels"),
            KS if ks is None else ks,
            console,
        )
    if options.geometry:
        found["density"] = metrics.density(points, labels)
        found["spectral_decay"] = metrics.spectral_decay(points)
        found["uniformity"] = metrics.uniformity(points)
    found["protocol"] = protocol.description(options.protocol, classes=classes, gallery=bool(given), **manner)
    found |= {"rows": len(points), "columns": points.shape[1], "classes": classes}
    found |= {key: str(getattr(options, key)) for key in ("embeddings", "labels")}
    if given:
        found |= {"gallery_rows": len(given["gallery"])}
        found |= {key: str(getattr(options, key)) for key in ("query_embeddings", "query_labels")}
    return found


def show(result: dict[str, Any], output: Path | None) -> None:
    """The table on standard output."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE, title=f"{result['rows']:,} rows, {result['classes']:,} classes")
    table.add_column("metric")
    table.add_column("%", justify="right")
    table.add_column("± s.e.", justify="right")
    others = [result[name] for name in rerank_options.NAMES if name in result]
    for name in rerank_options.NAMES:
        if name in result:
            table.add_column(name, justify="right")
            table.add_column("± s.e.", justify="right")
    plain = ("density", "spectral_decay", "uniformity")
    for key, value in result.items():
        if f"{key}_stderr" in result:
            cells = [
                f"{100 * row[name]:.2f}" if name in row else ""
                for row in (result, *others)
                for name in (key, f"{key}_stderr")
            ]
            table.add_row(key, *cells)
        elif key in plain:
            table.add_row(f"{key} (not in %)", f"{value:.4f}", "")
    console = Console(highlight=False, soft_wrap=True)
    console.print(table)
    if result["lone_queries"]:
        console.print(f"{result['lone_queries']:,} queries have no relevant row")
    for row in (result, *others):
        console.print(row["protocol"], markup=False)
    console.print(f"{result['seconds']:.1f} s{f'; written to {output}' if output else ''}", markup=False)


def main() -> int:
    """Runs the command on `sys.argv`; returns its exit code."""
    return cli.status(lambda: execute(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
