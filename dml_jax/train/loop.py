"""The training loop: batch, step, log, evaluate, save.

Exact resume: batch i is a pure function of (seed, i), and each step folds its number into the key,
so the state alone determines how a run continues. Each line of metrics is on disk before the next
checkpoint, which stores the digest of all lines so far. A resumed run removes lines after its
checkpoint and writes them again, identical in every bit. Checkpoints are written in the background.
"""

from collections.abc import Callable, Mapping
from contextlib import closing
from itertools import count, takewhile
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from dml_jax.console import Console
from dml_jax.data.samplers import Sampler
from dml_jax.data.split import with_gallery
from dml_jax.errors import DivergedError, counted
from dml_jax.methods.contract import Refresh
from dml_jax.train import model_metrics, warm_start
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.distributed import device_mesh, process_group
from dml_jax.train.distributed.stop_signals import Interrupted, Stop
from dml_jax.train.embedding import Embedder
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import logs, workdir
from dml_jax.train.step import TrainState
from dml_jax.train.step import check_finite as check_state


class Records(NamedTuple):
    """The files and messages of a run."""

    checkpoints: Checkpoints
    metrics: logs.JsonLines
    timing: logs.JsonLines
    console: Console


class Progress(NamedTuple):
    """The state of the loop that a checkpoint stores in addition to the train state."""

    devices: int  # on all machines
    processes: int
    best: float = -1.0  # Recall@1 of the best model so far; negative before the first evaluation
    pending: dict[str, Any] | None = None  # the line of metrics whose evaluation was interrupted


def train(
    experiment: Experiment,
    directory: Path,
    facts: Mapping[str, Any],
    console: Console,
    stop: Stop,
    show: Callable[[dict[str, Any]], None] | None = None,
    profile: tuple[int, int] | None = None,
) -> TrainState:
    """Trains from the newest checkpoint, or from the start, to the last step; returns the state.

    `facts` are the contents of `config.json` in the work directory. `show` is called with each line
    of metrics. `profile` is the first and the last step to trace. A signal raises Interrupted once
    a checkpoint of the current step is on disk. Raises DivergedError if the loss or the state is
    not finite; the newest checkpoint is then an earlier one.
    """
    main = device_mesh.is_main_process()
    metrics = logs.JsonLines(directory / "metrics.jsonl", main, show)
    speed = logs.JsonLines(directory / "timing.jsonl", main)
    options: dict[str, Any] = {"run": facts, "keep_every": experiment.config.train.keep_every}
    path = directory / "checkpoints"
    with closing(Checkpoints(path, experiment.template, console.warn, **options)) as checkpoints:
        run = Training(experiment, Records(checkpoints, metrics, speed, console), stop)
        if line := run.progress.pending:
            run.evaluate(line)
        if run.start < experiment.steps:
            run.make_steps(profile)
        return run.state


class Training:
    """A run between two steps: its state, and the actions that may be due.

    Actions before or after a step take its number. The state is stored as its leaves; see
    `Experiment.jitted_step`.
    """

    def __init__(self, experiment: Experiment, out: Records, stop: Stop):
        self.experiment, self.out, self.stop = experiment, out, stop
        state = self.resume_or_start()
        self.start = int(state.step)
        self.leaves, self.structure = jax.tree.flatten(state)
        self.tested = model_metrics.compiled(experiment, state)
        self.rate_factor = jax.jit(experiment.schedule)
        self.metrics: dict[str, jax.Array] = {}  # of the last step

    def resume_or_start(self) -> TrainState:
        """The state of the newest checkpoint, or the initial state; sets the progress, and removes
        later records."""
        experiment, out = self.experiment, self.out
        current = Progress(experiment.mesh.size, jax.process_count())
        if restored := out.checkpoints.restore():
            state, notes = restored
            previous, digests = Progress(**notes["progress"]), notes["metrics"]
            self.progress = previous._replace(devices=current.devices, processes=current.processes)
            out.console.print(f"resuming from step {int(state.step)}")
            if self.progress != previous:
                now, then = (
                    f"{each.devices} of {counted(each.processes, 'process')}"
                    for each in (current, previous)
                )
                out.console.print(
                    f"devices: {now}, previously {then}; results may now differ by rounding"
                )
        else:
            self.progress, digests = current, {}
            state = experiment.filled(warm_start.initial_state(experiment, out.console))
        start = int(state.step)
        # The last step of a shorter run writes a line that a longer run may not.
        complete = self.measuring(start) and not self.progress.pending
        last, lines = (start, "through") if complete else (start - 1, "before")
        out.metrics.truncate(last, digests.get(lines))  # may raise, so nothing is deleted before
        out.checkpoints.drop_newer("best", start)
        out.timing.truncate(start)
        return state

    @property
    def state(self) -> TrainState:
        """The state after the last step."""
        return TrainState(*jax.tree.unflatten(self.structure, self.leaves))

    def make_steps(self, profile: tuple[int, int] | None) -> None:
        """Makes the steps after `start`, each with the actions that are due before and after it."""
        experiment, out, stop = self.experiment, self.out, self.stop
        config, start, total = experiment.config.train, self.start, experiment.steps
        if stop.agreed():
            self.save_unless_held()
            raise Interrupted(stop.agreed())
        self.trace = out.metrics.path.parent / "profile" / workdir.process_name()
        first, last = profile or (0, 0)
        self.traced = range(max(first, start + 1), last + 1)
        if profile and not self.traced:
            steps = f"steps {first} to {last}"
            out.console.warn(f"no trace of {steps}: training resumes after step {start}")
        sampler, refresh = experiment.sampler, experiment.method.hooks.refresh
        reloads = {sampler.first_step(config.warmup_epochs + n) for n in config.reload_best_epochs}
        refreshes = refresh_steps(refresh, sampler, total)
        if refresh:
            self.features = experiment.embedder(refresh.features)
        update = experiment.jitted_step(self.state)
        key = device_mesh.place(experiment.mesh, experiment.key)
        batches = experiment.batches(start, total)
        out.console.print("compiling the training step")
        self.clock = logs.Meter(batches, experiment.config.data.batch_size, start)
        self.ahead = self.stopping = False
        before: list[tuple[Callable[[int], bool], Callable[[int], None]]] = [
            (lambda step: step in self.traced[:1], self.start_trace),
            (lambda step: step - 1 in reloads, self.reload_best),
            (lambda step: step - 1 in refreshes, self.refresh),
            (lambda step: step == 1 and config.select == "folds", self.keep_first),
        ]
        after: list[tuple[Callable[[int], bool], Callable[[int], None]]] = [
            (lambda step: step in self.traced[-1:], self.stop_trace),
            (lambda step: step == start + 1, self.start_progress),
            (lambda step: self.evaluating(step) or self.saving(step), self.check),
            (self.logging, self.log),
            (self.evaluating, lambda step: self.evaluate(self.line(step))),
            # The throughput covers only training.
            (self.measuring, self.clock.restart),
            (self.saving, lambda step: self.save(background=not self.stopping)),
        ]
        with batches:
            for step in range(start + 1, total + 1):
                for due, action in before:
                    if due(step):
                        action(step)
                with jax.profiler.TraceAnnotation("waiting for data"):
                    arrays = next(batches)
                previous, batch = self.metrics, experiment.device_batch(*arrays)
                self.leaves, self.metrics = update(self.leaves, batch, key)
                check_finite(previous, step - 1)  # one step behind, so that devices never wait
                self.stopping = bool(stop.poll())
                for due, action in after:
                    if due(step):
                        action(step)
                if self.stopping:
                    raise Interrupted(stop.agreed())

    def logging(self, step: int) -> bool:
        every = self.experiment.config.train.log_every
        return step % every == 0 or step == self.experiment.steps

    def evaluating(self, step: int) -> bool:
        config, epoch = self.experiment.config.train, self.experiment.sampler.epoch
        if config.selects_steps and step == self.experiment.steps:
            return True
        if config.evaluate_every:
            return step % config.evaluate_every == 0
        return config.epochs > 0 and epoch(step) != epoch(step - 1)

    def measuring(self, step: int) -> bool:
        return self.logging(step) or self.evaluating(step)

    def saving(self, step: int) -> bool:
        config = self.experiment.config.train
        due = any(n and step % n == 0 for n in (config.checkpoint_every, config.keep_every))
        return due or step == self.experiment.steps or self.stopping or self.ahead

    def start_trace(self, step: int) -> None:
        jax.block_until_ready(self.leaves)
        jax.profiler.start_trace(self.trace)

    def stop_trace(self, step: int) -> None:
        jax.block_until_ready(self.metrics)
        jax.profiler.stop_trace()
        viewers = f"pip install xprof && xprof --logdir={self.trace}, or ui.perfetto.dev"
        self.out.console.print(f"trace of steps {self.traced[0]} to {step}: {viewers}")
        self.clock.restart(step)  # writing the trace takes a while

    def start_progress(self, step: int) -> None:
        jax.block_until_ready(self.metrics)  # keeps the compilation out of the throughput
        self.out.console.start_progress("training", self.experiment.steps, step)
        self.clock.restart(step)

    def reload_best(self, step: int) -> None:
        """Restores the best model so far, if there is one."""
        if best := self.out.checkpoints.restore("best"):
            current = {"step": self.state.step, "opt_state": self.state.opt_state}
            self.leaves = jax.tree.leaves(best[0]._replace(**current))

    def refresh(self, step: int) -> None:
        """Calls the method's refresh; on a signal, saves the old state and raises Interrupted."""
        self.check(step - 1)
        self.out.console.print(f"step {step - 1}: computing features of all training images")
        try:
            state = refreshed(self.experiment, self.features, self.state, self.on_progress)
        except Interrupted:
            self.save_unless_held()
            raise
        self.leaves = jax.tree.leaves(state)
        self.clock.restart(step - 1)

    def keep_first(self, step: int) -> None:
        self.out.checkpoints.save("first", self.state, {}, background=True)

    def check(self, step: int) -> None:
        """Raises DivergedError if the state or a metric is not finite."""
        check_finite(self.metrics, step)
        check_state(self.state)

    def line(self, step: int) -> dict[str, Any]:
        """The line of metrics for the last step."""
        rate = float(self.rate_factor(step - 1))
        return {"step": step, **check_finite(self.metrics, step), "learning_rate_factor": rate}

    def log(self, step: int) -> None:
        line, speed = self.line(step), self.clock.read(step)
        self.out.timing.write(speed)
        text = f"loss {line['loss']:.4f}  {logs.describe(speed)}"
        self.out.console.update_progress(step, text)
        if not self.evaluating(step):
            self.out.metrics.write(line)

    def on_progress(self, done: int) -> None:
        self.stop.raise_if_stopped()

    def evaluate(self, line: dict[str, Any]) -> None:
        """Evaluates, writes the line of metrics, and saves the model if it is the best so far.

        On a signal, raises Interrupted after a checkpoint has recorded the pending evaluation.
        """
        experiment, out, state = self.experiment, self.out, self.state
        config, distance = experiment.config, experiment.method.distance
        unseen = "validation" in experiment.splits and config.train.select != "test"
        name = "validation" if unseen else "test"
        splits = with_gallery(experiment.splits, name)
        try:
            by_variant = {
                variant: model_metrics.metrics(config, distance, splits, rows, cluster=False)
                for variant, rows in self.tested.embed(state, splits, self.on_progress).items()
            }
            variant = model_metrics.reported(config.evaluation, by_variant)
            results = by_variant[variant]
            on_training_classes = model_metrics.training_class_metrics(
                experiment, self.tested, variant, state, splits[name], self.on_progress
            )
        except Interrupted:
            self.progress = self.progress._replace(pending=line)
            self.save_unless_held()
            raise
        self.progress = self.progress._replace(pending=None)
        values = {f"{name}/{metric}": value for metric, value in results.items()}
        for alternative in filter(None, by_variant):
            values[f"{name}/recall@1 {alternative}"] = by_variant[alternative]["recall@1"]
        out.metrics.write(line | on_training_classes | values)
        # Processes may rank near ties differently.
        recall = process_group.decided_by_first(lambda: float(results["recall@1"]))
        summary = f"Recall@1 {recall:.1%}  MAP@R {results['map@r']:.1%}"
        note = f"  ({variant})" if variant else ""
        out.console.print(f"step {int(state.step)}: {name} {summary}{note}")
        if config.train.selects_steps and recall > self.progress.best:
            out.checkpoints.save("best", state, {"recall@1": recall}, background=True)
            self.progress = self.progress._replace(best=recall)
            self.ahead = True  # `best` must not get two models ahead of `latest`

    def save_unless_held(self) -> None:
        """Saves a checkpoint unless this step has one, which replacing could lose."""
        if not self.out.checkpoints.holds(int(self.state.step)):
            self.save()

    def save(self, *, background: bool = False) -> None:
        """Saves a checkpoint for resuming, with the digests of its metrics."""
        state, progress = self.state, self.progress._asdict()
        notes = {"progress": progress, "metrics": self.out.metrics.digests(int(state.step))}
        self.out.checkpoints.save("latest", state, notes, background=background)
        self.ahead = False


def check_finite(metrics: dict[str, jax.Array], step: int) -> dict[str, float]:
    """The metrics of a step as numbers; DivergedError if one is not finite."""
    values = {name: float(value) for name, value in jax.device_get(metrics).items()}
    if infinite := [name for name, value in values.items() if not abs(value) < float("inf")]:
        shown = ", ".join(f"{name}={values[name]}" for name in infinite)
        raise DivergedError(
            f"training diverged at step {step}: {shown}; lower the learning rates and start again"
        )
    return values


def refresh_steps(refresh: Refresh | None, sampler: Sampler, steps: int) -> frozenset[int]:
    """The step numbers below `steps` after which a refresh is due, including 0."""
    if not refresh or not refresh.epochs:
        return frozenset([0] if refresh else [])
    starts = (sampler.first_step(epoch) for epoch in count(0, refresh.epochs))
    return frozenset(takewhile(lambda step: step < steps, starts))


def refreshed(
    experiment: Experiment,
    features: Embedder,
    state: TrainState,
    on_progress: Callable[[int], None],
) -> TrainState:
    """The state after the method's refresh, which depends only on the given state.

    `features` embeds the training images, unless the experiment has stored features.
    """
    refresh, stored = experiment.method.hooks.refresh, experiment.features
    assert refresh is not None
    if stored is not None:  # the first view is the evaluation's crop
        computed = np.asarray(jax.jit(refresh.features)(*state[1:3], stored[:, 0]))
    else:
        computed = features.embed_split(state, experiment.splits["train"], on_progress)
    key = jax.random.fold_in(jax.random.fold_in(experiment.key, 2**31 - 2), int(state.step))
    local = jax.tree.map(np.asarray, (state.params, state.model_state))
    updated = refresh.update(*local, computed, key)
    params, model_state = device_mesh.place(experiment.mesh, updated)
    return state._replace(params=params, model_state=model_state)
