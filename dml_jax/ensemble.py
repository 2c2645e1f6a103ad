"""Judges several runs and their ensemble, the embeddings side by side:

    python -m dml_jax.ensemble runs/a runs/b [runs/c …] [--output=runs/abc] [--split=test]

Reads the embeddings that the runs have exported of the same images. Those of the ensemble are the members' unit rows
side by side, divided by the root of their number: the cosine of two images is the mean of the members' cosines
(Seidenschwarz et al., ICML 2021, sec. 4.4). With --output they are written as a run's are, beside results.json.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dml_jax import cli, files
from dml_jax.errors import ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np

    from dml_jax.export.arrays import Exported


HEADINGS = {"map@r": "MAP@R", "r_precision": "R-precision", "nmi": "NMI"}


def parser() -> cli.Parser:
    """The options of the command."""
    flags = cli.Parser(__doc__)
    flags.add_argument("runs", nargs="*", metavar="RUN", help="work directories, two or more")
    flags.add_argument("--output", metavar="DIRECTORY", help="gets embeddings/<split> and results.json of the ensemble")
    flags.add_argument("--split", default="test", help="whose embeddings (default: test)")
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line and the arrays, judges, shows and writes.

    Raises:
      UserError: what the user can mend.
    """
    options, overrides = parser().read(arguments)
    if overrides:
        raise ConfigError(f"--config.{min(overrides)}: dml_jax.ensemble has no configuration")
    runs = [files.expand_path("RUN", name) for name in options.runs]
    if len(runs) < 2:
        raise ConfigError("RUN: give the work directories of two or more runs, e.g. runs/a runs/b")
    twice = next((run for i, run in enumerate(runs) if run.resolve() in [r.resolve() for r in runs[:i]]), None)
    if twice is not None:
        raise ConfigError(f"{twice}: is named twice")
    absent = next((run for run in runs if not run.is_dir()), None)
    if absent is not None:
        raise ConfigError(f"{absent}: there is no such directory")
    output = files.expand_path("--output", options.output) if options.output else None

    from dml_jax.console import Console
    from dml_jax.evaluation import protocol
    from dml_jax.export import arrays
    from dml_jax.train import workdir

    splits = [options.split]
    if options.split == "test" and any((run / "embeddings" / "gallery").exists() for run in runs):
        splits.append("gallery")
    if output is not None:
        if output.exists() and not output.is_dir():
            raise ConfigError(f"--output={options.output}: is a file; give a directory")
        if (output / "config.json").exists() or output.resolve() in [run.resolve() for run in runs]:
            raise ConfigError(f"--output={options.output}: holds a run or a member; give another directory")
        held = {entry.name for entry in output.iterdir()} if output.exists() else set()
        if held and not {"embeddings"} <= held <= {"embeddings", "results.json"}:  # not an earlier ensemble's
            raise ConfigError(f"--output={options.output}: is not empty; give another directory")
        for split in splits:
            arrays.free(output / "embeddings" / split)
    members = {split: [arrays.read(run / "embeddings" / split) for run in runs] for split in splits}
    for split, exported in members.items():
        agree([run / "embeddings" / split for run in runs], exported)
    together = {split: concatenated([member.embeddings for member in of]) for split, of in members.items()}
    labels: dict[str, Any] = {split: of[0].labels for split, of in members.items()}

    judged = workdir.read_config(runs[0])["config"]["evaluation"]
    for run in runs[1:]:
        other = workdir.read_config(run)["config"]["evaluation"]
        for key in ("protocol", "cluster", "ks"):
            if other[key] != judged[key]:
                raise ConfigError(
                    f"{runs[0]} and {run}: are judged differently, evaluation.{key} is {judged[key]!r} and "
                    f"{other[key]!r}; their numbers cannot stand side by side"
                )
    manner: dict[str, Any] = {"protocol": judged["protocol"], "cluster": judged["cluster"]}

    def numbers(found: dict[str, Any]) -> dict[str, Any]:
        return protocol.judge(
            found[options.split], labels[options.split], ks=tuple(judged["ks"]),
            gallery=found.get("gallery"), gallery_labels=labels.get("gallery"), **manner,
        )  # fmt: skip

    alone = [numbers({split: of[i].embeddings for split, of in members.items()}) for i in range(len(runs))]
    results = numbers(together)
    results["protocol"] = protocol.describe(
        classes=len(set(labels[options.split].tolist())), gallery="gallery" in splits, **manner
    )
    results["members"] = {str(run): each for run, each in zip(runs, alone, strict=True)}
    show(results, Console(quiet=True).rich)
    if output is not None:
        for split, of in members.items():
            arrays.write(
                output / "embeddings" / split, together[split], labels[split], of[0].ids,
                config_hash=None, step=None, members=[member.manifest for member in of],
            )  # fmt: skip
        files.write_json(output / "results.json", results)
        print(f"embeddings of {together[options.split].shape[1]} numbers: {output / 'embeddings'}")


def agree(directories: list[Path], exported: "list[Exported]") -> None:
    """Raises DataError unless all hold the same images in the same order, and the same labels."""
    import numpy as np

    first = exported[0]
    if first.labels is None:
        raise DataError(f"{directories[0]}: holds no labels.npy; without labels nothing can be judged")
    for directory, other in zip(directories[1:], exported[1:], strict=True):
        pair = f"{directories[0]} and {directory}"
        if len(first.ids) != len(other.ids):
            raise DataError(
                f"{pair}: hold {len(first.ids)} and {len(other.ids)} images; an ensemble needs the same ones"
            )
        row = next((i for i, (a, b) in enumerate(zip(first.ids, other.ids, strict=True)) if a != b), None)
        if row is not None:
            raise DataError(
                f"{pair}: hold other images, {json.dumps(first.ids[row])} and {json.dumps(other.ids[row])} in row "
                f"{row}; an ensemble needs the same ones in the same order"
            )
        if other.labels is None or not np.array_equal(first.labels, other.labels):
            raise DataError(f"{pair}: hold the same images with other labels; export both from the same data set")


def concatenated(embeddings: "list[np.ndarray]") -> "np.ndarray":
    """Unit rows of k models, each [N, D_i], as unit rows [N, D_1 + … + D_k]."""
    import numpy as np

    return np.concatenate(embeddings, axis=1) / np.float32(len(embeddings) ** 0.5)


def show(results: dict[str, Any], console: Any) -> None:
    """The table on the screen: each member and the ensemble."""
    from rich.table import Table

    from dml_jax.analysis import report

    columns = [key for key in results if f"{key}_stderr" in results]
    grid = Table(title="unseen classes, %", title_justify="left")
    grid.add_column("", no_wrap=True)
    for key in columns:
        grid.add_column(HEADINGS.get(key, key.replace("recall", "R")), justify="right", no_wrap=True)
    for name, numbers in [*results["members"].items(), (f"ensemble of {len(results['members'])}", results)]:
        grid.add_row(name, *(report.cell(numbers, key) for key in columns), style="bold" if numbers is results else "")
    console.print(grid)
    console.print(results["protocol"], style="dim", markup=False)


def main() -> int:
    """Runs the command on `sys.argv`; returns its exit code."""
    return cli.status(lambda: execute(sys.argv[1:]))


if __name__ == "__main__":
    sys.exit(main())
