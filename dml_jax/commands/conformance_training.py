"""The checks of `dml-jax check` of a plug-in by its training on the digits."""

import json
import os
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np

import dml_jax
from dml_jax import run as main
from dml_jax.commands.cli import require
from dml_jax.commands.conformance import SMALL_NETWORK, Outcome, Plugin
from dml_jax.config import Config, Data, Evaluation, Group, Train, resolve
from dml_jax.config import files as config_files
from dml_jax.console import Console
from dml_jax.data import formats
from dml_jax.export import programs
from dml_jax.methods import baseline
from dml_jax.studies import runner
from dml_jax.studies.plan import Trial

STEPS, CHECKPOINT = 30, 3  # of the training, and between its checkpoints
FEW = 3  # first steps whose losses must agree on 1 and 8 devices
ON_DEVICES, LOADED = 1e-3, 1e-4  # largest relative errors of losses and of embeddings
KEYS = {"distance": "method.distance", "sampler": "data.sampler", "optimizer": "train.optimizer", "data": "data.name",
        "metric": "evaluation.metrics", "step": "evaluation.refine"}  # fmt: skip


def configuration(plugin: Plugin) -> Config:
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
    return resolve(values.to_dict())


def cpu(devices: int) -> runner.Slot:
    """An environment with some emulated devices that finds what this process can import."""
    folders = [os.getcwd(), str(Path(dml_jax.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    variables = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags, "PYTHONPATH": os.pathsep.join(folders)}
    return runner.Slot(frozenset(), variables)


def run(directory: Path, name: str, config: Config, devices: int = 1) -> Path:
    """The work directory of a training to its end, in a process of its own; ConfigError with the reason if it fails."""
    trial = Trial(name, name, 0, directory / name, config)
    done = runner.execute(directory, trial, cpu(devices), runner.Progress())
    require(done, runner.failure(directory, name))
    return trial.directory


def kill(directory: Path, name: str, config: Config) -> int:
    """Starts a training, kills it after its first checkpoint and returns the step of this checkpoint."""
    trial = Trial(name, name, 0, directory / name, config)
    kept: list[int] = []
    with cpu(1).start(runner.command(directory, trial), runner.file_of(directory, name, "log")) as process:
        while not kept and process.poll() is None:
            time.sleep(0.02)
            kept = [int(p.name) for p in trial.directory.glob("checkpoints/latest/*") if p.name.isdecimal()]
        process.kill()
    require(kept and process.returncode < 0, "ends before it writes a checkpoint")
    return max(kept)


def embeddings(run: Path) -> np.ndarray:
    return np.asarray(np.load(run / "embeddings/test/embeddings.npy"))


def losses(run: Path) -> np.ndarray:
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return np.array([line["loss"] for line in lines if "loss" in line])


def train(plugin: Plugin, directory: Path) -> None:
    """The checks of a training on the digits."""
    directory = directory / plugin.path
    (directory / "trials").mkdir(parents=True, exist_ok=True)
    config = configuration(plugin)
    with plugin.check("train", "keep the runs with --workdir; their logs are in trials/") as outcome:
        whole = run(directory, "whole", config)
        found = losses(whole)
        require(np.isfinite(found).all(), f"the loss is {found[-1]} after {len(found)} steps")
        outcome.note = f"loss {found[0]:.4g} to {found[-1]:.4g} in {len(found)} steps"
    if outcome.problem:
        plugin.outcomes.append(Outcome("everything after training", skipped="until it trains"))
        return
    with plugin.check("kill and resume", "keep state in params, model_state or the step only") as outcome:
        step = kill(directory, "killed", config)
        same = np.array_equal(embeddings(whole), embeddings(run(directory, "killed", config)))
        require(same, f"killed after step {step} and resumed, it ends with other embeddings")
        outcome.note = f"killed after step {step}: the same bits"
    results = json.loads((whole / "results.json").read_text())
    with plugin.check("evaluate", "embed must depend on parameters and image only") as outcome:
        again = main.evaluate(config, whole, "reported", Console(active=False))
        wrong = [key for key in results if "@" in key and not np.isclose(results[key], again[key], equal_nan=True)]
        require(not wrong, f"evaluated again, {', '.join(wrong)} differ")
        own = {key.removeprefix("own/"): value for key, value in results.items() if key.startswith("own/")}
        shown = {"Recall@1": results["recall@1"]} | own
        outcome.note = ", ".join(f"{key} {value:.4g}" for key, value in shown.items() if not key.endswith("_stderr"))
    with plugin.check("refine", "return finite queries [Q, D]") as outcome:
        outcome.skipped = "" if results.get("refined") else "it has no test-time step"
        for name, metrics in results.get("refined", {}).items():
            require("problem" not in metrics, f"{name}: {metrics.get('problem')}")
            outcome.note = f"Recall@1 after {name} {metrics['recall@1']:.4g}"
    with plugin.check("load", "embed must depend on parameters and image only") as outcome:
        model = dml_jax.load(whole, trust_code=True)
        split = formats.load(model.config.data)["test"]
        rows = model.embed([split.read(i, None) for i in range(10)])
        close = np.allclose(rows, embeddings(whole)[:10], rtol=LOADED, atol=LOADED)
        require(close, "a loaded model gives other embeddings than the run")
        outcome.note = f"{rows.shape[1]} dimensions"
    with plugin.check("export", "embed must be traceable: no NumPy on arrays, no Python on values"):
        (batch,) = jax.export.symbolic_shape("batch")
        images = jax.ShapeDtypeStruct((batch, *model.shape, 3), np.uint8)
        jax.export.export(jax.jit(programs.function_of(model.trained)))(images)
    with plugin.check("8 devices", "compare rows of the whole batch, draw random numbers by the key") as outcome:
        one, other = found[:FEW], losses(run(directory, "eight", config, devices=8))[:FEW]
        error = float(np.max(np.abs(one - other) / np.maximum(np.abs(one), 1e-6)))
        require(error < ON_DEVICES, f"on 8 devices, the loss of the first {FEW} steps differs by {error:.1e}")
        outcome.note = f"losses differ by {error:.0e}"
