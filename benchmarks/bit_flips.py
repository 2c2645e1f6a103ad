"""Flips single bits in files and looks who notices (see `faults.py`): in a finished run with its
analyses and several checkpoints, in its graph in the cache (extra "onnx"), and in an index.

After each flip, all readers of the file's artefact run, unless none of them opens the file. The
flip is noticed if one of them raises a `UserError` or deletes the graph. Flips that only `--verify`
notices, which compares all files with the manifest, are counted separately. Otherwise the answers
are compared with those before the flip.
"""

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import jax
import numpy as np

import dml_jax
from dml_jax import run as runs
from dml_jax import seal
from dml_jax.analysis import findings, labelled_embeddings
from dml_jax.analysis.analysed_model import AnalysedModel
from dml_jax.commands import analyse
from dml_jax.config import resolve
from dml_jax.console import Console
from dml_jax.errors import UserError
from dml_jax.export import embedding_files
from dml_jax.inference import graphs, model_export
from dml_jax.inference.index import Index
from dml_jax.lab import outcomes
from dml_jax.train.distributed.stop_signals import Stop
from dml_jax.train.records import logs, workdir
from tests.train import experiments

QUIET = Console(quiet=True, active=False)
NEAR = 1e-4  # the largest difference between equal embeddings


def answers_of_run(run: Path, images: list[np.ndarray]) -> list[Any]:
    """Everything that the library reads from a run."""

    def lost() -> NoReturn:
        raise UserError("not restored")

    found: list[Any] = [workdir.read_results(run), workdir.read_config(run), outcomes.read_run(run)]
    found += [asdict(section) for section in findings.read_sections(run, ())]
    found += [logs.JsonLines(run / name).read() for name in ("metrics.jsonl", "timing.jsonl")]
    stored = embedding_files.of_run(run, "test")
    found += [np.array(stored.embeddings), stored.labels, stored.ids, stored.metadata]
    model: Any = dml_jax.load(run, runtime="jax")
    analysed = AnalysedModel(run, model.trained, {}, QUIET, before_training=lost)
    found += [jax.tree.leaves((each.params, each.model_state)) for each in analysed.models()]
    found.append(model.embed(images))
    index = model.enroll({"a": images[:2], "b": images[2:4]})
    found.append([(answer.name, answer.probability) for answer in index.classify(images)])
    settings = labelled_embeddings.Settings(quiet=True)
    metrics = labelled_embeddings.evaluate_runs(str(run), settings)
    return [*found, {key: value for key, value in metrics.items() if key != "seconds"}]


def equal(one: Any, other: Any) -> bool:
    """Whether answers agree, embeddings up to the difference of runtimes."""
    leaves = [jax.tree.leaves(each) for each in (one, other)]
    return len(leaves[0]) == len(leaves[1]) and all(
        np.allclose(a, b, rtol=0, atol=NEAR, equal_nan=True)
        if isinstance(a, np.ndarray | jax.Array | float)
        else a == b
        for a, b in zip(*leaves, strict=True)
    )


class Trial:
    """An artefact, its intact copy, and the outcomes of the flips."""

    def __init__(self, place: Path, read: Callable[[], Any], verify: Callable[[], object]):
        self.place, self.intact = place, place.with_name(f"{place.name}-intact")
        shutil.copytree(place, self.intact)
        self.files = sorted(path for path in self.intact.rglob("*") if path.is_file())
        self.files = [path for path in self.files if path.stat().st_size]
        self.read, self.verify, opened = read, verify, set[str]()
        sys.addaudithook(lambda event, args: event == "open" and opened.add(str(args[0])))
        self.expected = read()
        self.opened = {name for name in opened if name.startswith(str(place))}
        self.outcomes: Counter[str] = Counter()
        self.unseen: Counter[str] = Counter()  # files whose flips nothing noticed

    def flip(self, number: int, rng: np.random.Generator) -> None:
        """Flips a bit of the file whose turn it is, and restores everything."""
        shutil.rmtree(self.place, ignore_errors=True)
        shutil.copytree(self.intact, self.place)
        name = self.files[number % len(self.files)].relative_to(self.intact)
        content = bytearray((self.place / name).read_bytes())
        position = int(rng.integers(8 * len(content)))
        content[position // 8] ^= 1 << position % 8
        (self.place / name).write_bytes(content)
        outcome = self.outcome(str(self.place / name) in self.opened)
        self.outcomes[outcome] += 1
        if outcome not in ("noticed", "noticed by --verify"):
            self.unseen[f"{name}: {outcome}"] += 1

    def outcome(self, opened: bool) -> str:
        """The outcome of a flip in a file; a file that nothing opens is not read again."""
        try:
            if opened and not equal(self.read(), self.expected):
                return "other answers"
        except UserError:
            return "noticed"
        except Exception as error:
            return f"{type(error).__name__}: {error}"[:200]
        try:
            self.verify()
        except UserError:
            return "noticed by --verify"
        return "without effect"


def trials(folder: Path) -> dict[str, Trial]:
    """The artefacts in a folder, created by the commands of users."""
    run = folder / "run"
    config = resolve(experiments.values(steps=4) | {"name": "flips"} | keeping())
    runs.train(config, run, QUIET, Stop())
    analyse.execute([f"--model={run}", "--what=classes,overfitting", "--quiet"])
    model: Any = dml_jax.load(run, runtime="jax")
    rng = np.random.default_rng(1)
    images = list(rng.integers(0, 256, (8, *model.shape, 3), np.uint8))
    model.enroll({"a": images[:2], "b": images[2:4]}).save(folder / "index")
    model_export.export_model(run, ["onnx"], folder / "exported", say=lambda line: None)
    entry = graphs.entry(model.identity)

    def of_index() -> Any:
        index = Index.load(model, folder / "index")
        return [(answer.name, answer.probability) for answer in index.classify(images)]

    def of_graph() -> Any:
        found = dml_jax.load(run)
        if found.runtime == "jax":
            raise UserError("the graph was damaged, and deleted")
        return found.embed(images)

    return {
        "run": Trial(
            run, lambda: answers_of_run(run, images), lambda: seal.read(run, "run", exact=False)
        ),
        "graph": Trial(entry, of_graph, lambda: None),
        "index": Trial(folder / "index", of_index, lambda: None),
    }


def keeping() -> dict[str, Any]:
    """The `train` section, with checkpoints for analyses."""
    train = experiments.values(steps=4, keep_every=2, log_every=2)["train"]
    return {"train": train}


def main(arguments: list[str]) -> int:
    """Flips bits, a third of them in each artefact, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=400)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    rng = np.random.default_rng(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"XDG_CACHE_HOME": folder, "JAX_PLATFORMS": "cpu"}
        jax.config.update("jax_compilation_cache_dir", f"{folder}/compiled")
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
        made, began = trials(Path(folder)), time.monotonic()
        for number in range(options.flips):
            trial = list(made.values())[number % len(made)]
            trial.flip(number // len(made), rng)
            print(f"{number + 1} flips", file=sys.stderr, end="\r")
    print("| in | files | flips | noticed | only by `--verify` | without effect | other |")
    print("|---|--:|--:|--:|--:|--:|--:|")
    for name, trial in made.items():
        kinds = ("noticed", "noticed by --verify", "without effect")
        counts = [trial.outcomes[kind] for kind in kinds]
        total = trial.outcomes.total()
        cells = [name, len(trial.files), total, *counts, total - sum(counts)]
        print(f"| {' | '.join(map(str, cells))} |")
    print(f"{time.monotonic() - began:.0f} s")
    for name, trial in made.items():
        for what, count in trial.unseen.most_common():
            print(f"- {count} × {name}/{what}")
    harmless = {"noticed", "noticed by --verify", "without effect"}
    return int(any(trial.outcomes.keys() - harmless for trial in made.values()))
