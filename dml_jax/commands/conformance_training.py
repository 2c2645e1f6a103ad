"""The checks of `dml-jax check` of a plug-in by its training on the digits."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import dml_jax
from dml_jax.commands.conformance import Check, Failed, Skipped, require, small_network
from dml_jax.config import Data, Evaluation, Group, Train
from dml_jax.config import files as config_files
from dml_jax.data import formats
from dml_jax.methods import baseline

STEPS, CHECKPOINT = 30, 3  # of the training, and between its checkpoints
FEW = 3  # first steps whose losses must agree on 1 and 8 devices
ON_DEVICES, LOADED = 1e-3, 1e-4  # largest relative errors of losses and of embeddings
LIMIT = 600  # seconds for one training


def experiment(path: str, kind: str, overrides: Mapping[str, str]) -> dict[str, Any]:
    """The configuration of the training, nested."""
    module = sys.modules.get(path)
    method: Any = baseline.make_config(path if kind == "loss" else "contrastive", embedding_dim=8)
    groups: tuple[str, ...] = baseline.GROUPS
    if kind == "method" and module is not None:
        method, groups = module.Config(), module.GROUPS
    backbone = module.Config() if kind == "backbone" and module is not None else small_network()
    values: dict[str, Any] = {
        "name": "check",
        "seed": 0,
        "init_from": "",
        "data": asdict(Data(name="digits", batch_size=32, images_per_class=4, threads=1)),
        "backbone": asdict(backbone),
        "method": asdict(method),
        "head": None,
        "train": asdict(
            Train(
                groups={name: Group(1e-3) for name in groups}, optimizer="sgd", steps=STEPS, log_every=1,
                checkpoint_every=CHECKPOINT,
            )
        ),
        "evaluation": asdict(Evaluation(cluster=False, ks=(1, 2), full_ranking=True)),
        "paper": {},
    }  # fmt: skip
    keys = {
        "distance": ("method", "distance"), "sampler": ("data", "sampler"), "optimizer": ("train", "optimizer"),
        "data": ("data", "name"), "metric": ("evaluation", "metrics"), "step": ("evaluation", "refine"),
    }  # fmt: skip
    if kind in keys:
        section, key = keys[kind]
        values[section][key] = [path] if section == "evaluation" else path
    made = config_files.ConfigDict(values)
    for key, value in overrides.items():
        config_files.apply_override(made, key, value)
    return made.to_dict()


class Trainings:
    """The runs of one configuration, in processes of their own."""

    def __init__(self, directory: Path, values: dict[str, Any]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.directory, self.config = directory, directory / "config.json"
        self.config.write_text(json.dumps(values))

    def start(self, name: str, *more: str, devices: int = 1) -> "subprocess.Popen[str]":
        """Starts the main command."""
        folders = os.pathsep.join(
            [os.getcwd(), str(Path(dml_jax.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        )
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
        return subprocess.Popen(
            [sys.executable, "-m", "dml_jax.main", f"--config={self.config}", "--trust_code", "--quiet",
             f"--workdir={self.directory / name}", *more],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": folders},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def run(self, name: str, *more: str, devices: int = 1) -> None:
        """Runs the main command to its end; raises `Failed` with its last line if it fails."""
        process = self.start(name, *more, devices=devices)
        try:
            output, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            raise Failed(f"does not end within {LIMIT} s") from None
        if process.returncode:
            lines = [line for line in output.splitlines() if line.strip()]
            raise Failed(f"ends with {process.returncode}: {lines[-1] if lines else ''}")

    def kill(self, name: str) -> int:
        """Starts a run, kills it after its first checkpoint and returns the step of this checkpoint."""
        process, begun = self.start(name), time.monotonic()
        while time.monotonic() - begun < LIMIT and process.poll() is None:
            kept = [p.name for p in (self.directory / name / "checkpoints/latest").glob("*") if p.name.isdecimal()]
            if kept:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.02)
        process.communicate()
        require(process.returncode == -signal.SIGKILL, "ends before it writes a checkpoint")
        return max(map(int, kept))

    def embeddings(self, name: str) -> np.ndarray:
        """Of the test split."""
        return np.asarray(np.load(self.directory / name / "embeddings/test/embeddings.npy"))

    def losses(self, name: str) -> list[float]:
        """Of each step."""
        lines = (json.loads(line) for line in (self.directory / name / "metrics.jsonl").read_text().splitlines())
        return [line["loss"] for line in lines if "loss" in line]

    def results(self, name: str) -> dict[str, Any]:
        """The contents of `results.json`."""
        found: dict[str, Any] = json.loads((self.directory / name / "results.json").read_text())
        return found


def checks(path: str, kind: str, overrides: Mapping[str, str], directory: Path) -> Iterator[Check]:
    """The checks of a training on the digits."""
    runs = Trainings(directory / path, experiment(path, kind, overrides))

    def train() -> str:
        runs.run("whole")
        losses = runs.losses("whole")
        require(np.isfinite(losses).all(), f"the loss is {losses[-1]} after {len(losses)} steps")
        return f"loss {losses[0]:.4g} to {losses[-1]:.4g} in {len(losses)} steps"

    def resume() -> str:
        step = runs.kill("killed")
        runs.run("killed")
        same = np.array_equal(runs.embeddings("whole"), runs.embeddings("killed"))
        require(same, f"killed after step {step} and resumed, it ends with other embeddings")
        return f"killed after step {step}: the same bits"

    def evaluate() -> str:
        results = runs.results("whole")
        runs.run("whole", "--mode=evaluate", f"--output={runs.directory / 'again.json'}")
        again = json.loads((runs.directory / "again.json").read_text())
        wrong = [name for name in results if "@" in name and not np.isclose(results[name], again[name], equal_nan=True)]
        require(not wrong, f"evaluated again, {wrong} differ")
        own = {name.removeprefix("own/"): value for name, value in results.items() if name.startswith("own/")}
        more = "".join(f", {name} {value:.4g}" for name, value in own.items() if not name.endswith("_stderr"))
        return f"Recall@1 {results['recall@1']:.1%}{more}"

    def refine() -> str:
        found = runs.results("whole").get("refined")
        if not found:
            raise Skipped("it has no test-time step")
        (name, metrics), *_ = found.items()
        require("problem" not in metrics, f"{name}: {metrics.get('problem')}")
        return f"Recall@1 {metrics['recall@1']:.1%}"

    def load() -> str:
        model = dml_jax.load(runs.directory / "whole", trust_code=True)
        split = formats.load(model.config.data)["test"]
        images = [split.read(i, None) for i in range(10)]
        found, stored = model.embed(images), runs.embeddings("whole")[:10]
        require(
            np.allclose(found, stored, rtol=LOADED, atol=LOADED), "a loaded model gives other embeddings than the run"
        )
        return f"{found.shape[1]} dimensions"

    def export() -> None:
        from dml_jax.commands import export as command

        with contextlib.redirect_stdout(sys.stderr):
            command.execute([f"--model={runs.directory / 'whole'}", "--to=stablehlo", "--trust_code"])

    def devices() -> str:
        runs.run("eight", devices=8)
        one, eight = (np.array(runs.losses(name)[:FEW]) for name in ("whole", "eight"))
        error = float(np.max(np.abs(one - eight) / np.maximum(np.abs(one), 1e-6)))
        require(error < ON_DEVICES, f"on 8 devices, the loss of the first {FEW} steps differs by {error:.1e}")
        return f"losses differ by {error:.0e}"

    yield "train", "keep the runs with --workdir, and train the config.json there", train
    yield "kill and resume", "keep state in params, model_state or the step only", resume
    yield "evaluate", "embed must depend on parameters and image only", evaluate
    yield "refine", "return finite queries [Q, D]", refine
    yield "load", "embed must depend on parameters and image only", load
    yield "export", "embed must be traceable: no NumPy on arrays, no Python on values", export
    yield "8 devices", "compare rows of the whole batch, draw random numbers by the key", devices
