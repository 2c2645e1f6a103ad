"""The checks of `dml-jax check` of a plug-in by its training on the digits."""

import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np

import dml_jax
from dml_jax.commands.cli import require
from dml_jax.commands.conformance import SMALL_NETWORK, Outcome, Plugin
from dml_jax.config import Config, Data, Evaluation, Group, Train
from dml_jax.config import files as config_files
from dml_jax.data import formats
from dml_jax.errors import ConfigError
from dml_jax.export import programs
from dml_jax.methods import baseline

STEPS, CHECKPOINT = 30, 3  # of the training, and between its checkpoints
FEW = 3  # first steps whose losses must agree on 1 and 8 devices
ON_DEVICES, LOADED = 1e-3, 1e-4  # largest relative errors of losses and of embeddings
LIMIT = 600  # seconds for one training
KEYS = {"distance": "method.distance", "sampler": "data.sampler", "optimizer": "train.optimizer", "data": "data.name",
        "metric": "evaluation.metrics", "step": "evaluation.refine"}  # fmt: skip


def configuration(plugin: Plugin) -> dict[str, Any]:
    method: Any = baseline.make_config(plugin.path if plugin.kind == "loss" else "contrastive", embedding_dim=8)
    groups: tuple[str, ...] = baseline.GROUPS
    if plugin.kind == "method":
        method, groups = plugin.module.Config(), plugin.module.GROUPS
    config = Config(
        "check",
        Data(name="digits", batch_size=32, images_per_class=4, threads=1),
        plugin.module.Config() if plugin.kind == "backbone" else SMALL_NETWORK,
        method,
        Train(
            {name: Group(1e-3) for name in groups}, optimizer="sgd", steps=STEPS, log_every=1,
            checkpoint_every=CHECKPOINT,
        ),
        evaluation=Evaluation(cluster=False, ks=(1, 2), full_ranking=True),
    )  # fmt: skip
    values = config_files.ConfigDict(asdict(config))
    own: dict[str, Any] = {}
    if plugin.kind in KEYS:
        own[KEYS[plugin.kind]] = [plugin.path] if plugin.kind in ("metric", "step") else plugin.path
    for key, value in (own | dict(plugin.overrides)).items():
        config_files.apply_override(values, key, value)
    return values.to_dict()


class Run:
    """A training in a process of its own."""

    def __init__(self, directory: Path, name: str, devices: int = 1) -> None:
        self.directory, self.devices = directory / name, devices
        self.config = directory / "config.json"

    def start(self, *more: str) -> "subprocess.Popen[str]":
        folders = [os.getcwd(), str(Path(dml_jax.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={self.devices}"
        return subprocess.Popen(
            [sys.executable, "-m", "dml_jax.main", f"--config={self.config}", "--trust_code", "--quiet",
             f"--workdir={self.directory}", *more],
            env={**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(folders)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def finish(self, *more: str) -> None:
        """Runs the main command to its end; raises ConfigError with its last line if it fails."""
        process = self.start(*more)
        try:
            output, _ = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            process.kill()
            raise ConfigError(f"does not end within {LIMIT} s") from None
        lines = [line for line in output.splitlines() if line.strip()]
        require(not process.returncode, f"ends with {process.returncode}: {lines[-1] if lines else ''}")

    def kill(self) -> int:
        """Starts the run, kills it after its first checkpoint and returns the step of this checkpoint."""
        process, begun = self.start(), time.monotonic()
        kept: list[int] = []
        while not kept and time.monotonic() - begun < LIMIT and process.poll() is None:
            time.sleep(0.02)
            kept = [int(p.name) for p in self.directory.glob("checkpoints/latest/*") if p.name.isdecimal()]
        process.kill()
        process.communicate()
        require(kept and process.returncode < 0, "ends before it writes a checkpoint")
        return max(kept)

    def embeddings(self) -> np.ndarray:
        return np.asarray(np.load(self.directory / "embeddings/test/embeddings.npy"))

    def losses(self) -> np.ndarray:
        lines = map(json.loads, (self.directory / "metrics.jsonl").read_text().splitlines())
        return np.array([line["loss"] for line in lines if "loss" in line])


def train(plugin: Plugin, directory: Path) -> None:
    """The checks of a training on the digits."""
    directory = directory / plugin.path
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(configuration(plugin)))
    whole = Run(directory, "whole")
    with plugin.check("train", "keep the runs with --workdir, and train the config.json there") as outcome:
        whole.finish()
        losses = whole.losses()
        require(np.isfinite(losses).all(), f"the loss is {losses[-1]} after {len(losses)} steps")
        outcome.note = f"loss {losses[0]:.4g} to {losses[-1]:.4g} in {len(losses)} steps"
    if outcome.problem:
        plugin.outcomes.append(Outcome("everything after training", skipped="until it trains"))
        return
    with plugin.check("kill and resume", "keep state in params, model_state or the step only") as outcome:
        killed = Run(directory, "killed")
        step = killed.kill()
        killed.finish()
        same = np.array_equal(whole.embeddings(), killed.embeddings())
        require(same, f"killed after step {step} and resumed, it ends with other embeddings")
        outcome.note = f"killed after step {step}: the same bits"
    with plugin.check("evaluate", "return finite queries [Q, D] from a step at test time") as outcome:
        results = json.loads((whole.directory / "results.json").read_text())
        refined = {f"after {name}": metrics for name, metrics in results.get("refined", {}).items()}
        for name, metrics in refined.items():
            require("problem" not in metrics, f"{name}: {metrics.get('problem')}")
        shown = {name: metrics["recall@1"] for name, metrics in ({"Recall@1": results} | refined).items()}
        shown |= {key.removeprefix("own/"): value for key, value in results.items() if key.startswith("own/")}
        outcome.note = ", ".join(f"{key} {value:.4g}" for key, value in shown.items() if not key.endswith("_stderr"))
    with plugin.check("load", "embed must depend on parameters and image only") as outcome:
        model = dml_jax.load(whole.directory, trust_code=True)
        split = formats.load(model.config.data)["test"]
        found = model.embed([split.read(i, None) for i in range(10)])
        close = np.allclose(found, whole.embeddings()[:10], rtol=LOADED, atol=LOADED)
        require(close, "a loaded model gives other embeddings than the run")
        outcome.note = f"{found.shape[1]} dimensions"
    with plugin.check("export", "embed must be traceable: no NumPy on arrays, no Python on values"):
        (batch,) = jax.export.symbolic_shape("batch")
        images = jax.ShapeDtypeStruct((batch, *model.shape, 3), np.uint8)
        jax.eval_shape(programs.function_of(model.trained), images)
    with plugin.check("8 devices", "compare rows of the whole batch, draw random numbers by the key") as outcome:
        eight = Run(directory, "eight", devices=8)
        eight.finish()
        one, other = losses[:FEW], eight.losses()[:FEW]
        error = float(np.max(np.abs(one - other) / np.maximum(np.abs(one), 1e-6)))
        require(error < ON_DEVICES, f"on 8 devices, the loss of the first {FEW} steps differs by {error:.1e}")
        outcome.note = f"losses differ by {error:.0e}"
