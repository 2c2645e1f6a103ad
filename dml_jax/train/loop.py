"""The training loop, read from top to bottom: batch, step, log, evaluate, save.

Exact resume: batch i is a pure function of (seed, i) and the step folds its number into the key, so
the state alone determines how a run continues. A line of metrics is on disk before the checkpoint
that follows it, which has the digest of all lines so far; on resume, lines after the checkpoint are
removed and written again, bit for bit the same. Checkpoints are written while the training goes on.
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
from dml_jax.train.model_metrics import VariantsEmbedder
from dml_jax.train.records import logs, workdir
from dml_jax.train.step import TrainState, inference_state
from dml_jax.train.step import check_finite as check_state


class Records(NamedTuple):
    """The records of a run."""

    checkpoints: Checkpoints
    metrics: logs.JsonLines
    timing: logs.JsonLines
    console: Console


class Progress(NamedTuple):
    """State of the loop in a checkpoint, besides the train state."""

    devices: int  # on all machines
    processes: int
    best: float = -1.0  # Recall@1 of the best model so far; negative before the first evaluation
    pending: dict[str, Any] | None = None  # line of metrics whose evaluation was interrupted


def train(
    experiment: Experiment,
    directory: Path,
    facts: Mapping[str, Any],
    console: Console,
    stop: Stop,
    show: Callable[[dict[str, Any]], None] | None = None,
    profile: tuple[int, int] | None = None,
) -> TrainState:
    """The state after training from the newest checkpoint, or the start, to the last step.

    `facts` are the contents of `config.json` in the work directory. `show` is called with each line
    of metrics. The steps from the first to the last of `profile` are traced. On a signal, raises
    Interrupted once a checkpoint of the current step is on disk; DivergedError if the loss or the
    state is not finite, and the newest checkpoint is earlier.
    """
    main = device_mesh.is_main_process()
    metrics = logs.JsonLines(directory / "metrics.jsonl", main, show)
    speed = logs.JsonLines(directory / "timing.jsonl", main)
    keep_every = experiment.config.train.keep_every
    stored = Checkpoints(
        *(directory / "checkpoints", experiment.template, console.warn),
        run=facts,
        keep_every=keep_every,
    )
    with closing(stored) as checkpoints:
        out = Records(checkpoints, metrics, speed, console)
        return make_steps(experiment, out, stop, profile)


def make_steps(
    experiment: Experiment, out: Records, stop: Stop, profile: tuple[int, int] | None
) -> TrainState:
    """The loop of `train`."""
    config, total, method = experiment.config.train, experiment.steps, experiment.method
    state, progress = resume_or_start(experiment, out)
    start = int(state.step)
    tested = model_metrics.compiled(experiment, state)
    if line := progress.pending:
        progress = evaluate_and_record(experiment, out, tested, state, line, progress, stop)
    if start == total:
        return state
    first, last = profile or (0, 0)
    if profile and last <= start:
        steps = f"steps {first} to {last}"
        out.console.warn(f"no trace of {steps}: training continues after step {start}")
    update = experiment.jitted_step(state)
    leaves, structure = jax.tree.flatten(state)
    rate_factor = jax.jit(experiment.schedule)
    key = device_mesh.place(experiment.mesh, experiment.key)
    batches = experiment.batches(start, total)
    first_step, refresh = experiment.sampler.first_step, method.hooks.refresh
    reloads = {first_step(config.warmup_epochs + epoch) for epoch in config.reload_best_epochs}
    refreshes = refresh_steps(refresh, experiment.sampler, total)
    features = experiment.embedder(refresh.features) if refresh else None
    if stop.agreed():
        save_unless_held(out, state, progress)
        raise Interrupted(stop.agreed())
    out.console.print("compiling the training step")
    clock = logs.Meter(batches, experiment.config.data.batch_size, start)
    previous: dict[str, jax.Array] = {}
    trace = out.metrics.path.parent / "profile" / workdir.process_name()
    with batches:
        for done in range(start + 1, total + 1):
            if done == max(first, start + 1) <= last:
                jax.block_until_ready(leaves)
                jax.profiler.start_trace(trace)
            if done - 1 in reloads and (best := out.checkpoints.restore("best")):
                state = jax.tree.unflatten(structure, leaves)
                state = best[0]._replace(step=state.step, opt_state=state.opt_state)
                leaves = jax.tree.leaves(state)
            if features and done - 1 in refreshes:
                check_finite(previous, done - 1)
                state = jax.tree.unflatten(structure, leaves)
                check_state(state)
                state = refresh_state(experiment, out, features, state, progress, stop)
                leaves = jax.tree.leaves(state)
                clock.restart(done - 1)
            if done == 1 and config.select == "mixture":
                state = jax.tree.unflatten(structure, leaves)
                out.checkpoints.save("first", state, {}, background=True)
            logging, evaluating = logging_due(experiment, done), evaluation_due(experiment, done)
            with jax.profiler.TraceAnnotation("waiting for data"):
                arrays = next(batches)
            batch = experiment.device_batch(*arrays)
            leaves, metrics = update(leaves, batch, key)
            check_finite(previous, done - 1)  # one step behind, so that devices never wait
            previous = metrics
            if done == last:
                jax.block_until_ready(metrics)
                jax.profiler.stop_trace()
                viewers = f"pip install xprof && xprof --logdir={trace}, or ui.perfetto.dev"
                out.console.print(f"trace of steps {max(first, start + 1)} to {last}: {viewers}")
                clock.restart(done)  # writing the trace takes a while
            if done == start + 1:
                jax.block_until_ready(metrics)  # keeps the compilation out of the throughput
                out.console.start_progress("training", total, done)
                clock.restart(done)

            stopping = bool(stop.poll())
            saving = saving_due(experiment, done) or stopping
            if not (logging or evaluating or saving):
                continue
            values, state = check_finite(metrics, done), jax.tree.unflatten(structure, leaves)
            if evaluating or saving:
                check_state(state)
            rate = float(rate_factor(done - 1))
            line = {"step": done, **values, "learning_rate_factor": rate}
            if logging:
                speed = clock.read(done)
                out.timing.write(speed)
                shown = f"loss {values['loss']:.4f}  {logs.describe(speed)}"
                out.console.update_progress(done, shown)
            if evaluating:
                best_before = progress.best
                progress = evaluate_and_record(experiment, out, tested, state, line, progress, stop)
                # So that `best` is never ahead of `latest` by two models.
                saving = saving or progress.best != best_before
            elif logging:
                out.metrics.write(line)
            if logging or evaluating:
                clock.restart(done)  # the throughput counts training only
            if saving:
                save(out, state, progress, background=not stopping)
            if stopping:
                raise Interrupted(stop.agreed())
    return state


def save_unless_held(out: Records, state: TrainState, progress: Progress) -> None:
    """Saves a checkpoint unless there is one of this step: replacing it could lose it."""
    if not out.checkpoints.holds(int(state.step)):
        save(out, state, progress)


def save(out: Records, state: TrainState, progress: Progress, *, background: bool = False) -> None:
    """Saves a checkpoint for resuming, with the digests of the metrics that belong to it."""
    notes = {"progress": progress._asdict(), "metrics": out.metrics.digests(int(state.step))}
    out.checkpoints.save("latest", state, notes, background=background)


def resume_or_start(experiment: Experiment, out: Records) -> tuple[TrainState, Progress]:
    """State and progress of the newest checkpoint, or of the start; removes later records."""
    restored = out.checkpoints.restore()
    here = {"devices": experiment.mesh.size, "processes": jax.process_count()}
    if restored:
        before, digests = Progress(**restored[1]["progress"]), restored[1]["metrics"]
        state, progress = restored[0], before._replace(**here)
        out.console.print(f"resuming from step {int(state.step)}")
        if progress != before:
            now, then = (
                f"{each.devices} of {counted(each.processes, 'process')}"
                for each in (progress, before)
            )
            out.console.print(
                f"devices: {now}, until now {then}; from here on, equal to the same run up to "
                "rounding"
            )
    else:
        progress, digests = Progress(**here), {}
        state = experiment.filled(warm_start.initial_state(experiment, out.console))
    start = int(state.step)
    # At the end of a shorter run, there may be a line that a longer one does not write.
    due = logging_due(experiment, start) or evaluation_due(experiment, start)
    last, lines = (start, "through") if due and not progress.pending else (start - 1, "before")
    out.metrics.truncate(last, digests.get(lines))  # may refuse, so before anything is deleted
    out.checkpoints.drop_newer("best", start)
    out.timing.truncate(start)
    return state, progress


def check_finite(metrics: dict[str, jax.Array], step: int) -> dict[str, float]:
    """The metrics of a step as numbers; raises DivergedError if one of them is not finite."""
    values = {name: float(value) for name, value in jax.device_get(metrics).items()}
    if bad := [name for name, value in values.items() if not abs(value) < float("inf")]:
        shown = ", ".join(f"{name}={values[name]}" for name in bad)
        raise DivergedError(
            f"training diverged at step {step}: {shown}; lower the learning rates and start again"
        )
    return values


def logging_due(experiment: Experiment, step: int) -> bool:
    return step % experiment.config.train.log_every == 0 or step == experiment.steps


def saving_due(experiment: Experiment, step: int) -> bool:
    periods = experiment.config.train.checkpoint_every, experiment.config.train.keep_every
    return step == experiment.steps or any(every and step % every == 0 for every in periods)


def evaluation_due(experiment: Experiment, step: int) -> bool:
    config = experiment.config.train
    if config.selects_steps and step == experiment.steps:
        return True
    if config.evaluate_every:
        return step % config.evaluate_every == 0
    epoch = experiment.sampler.epoch
    return config.epochs > 0 and epoch(step) != epoch(step - 1)


def evaluate_and_record(
    experiment: Experiment,
    out: Records,
    tested: VariantsEmbedder,
    state: TrainState,
    line: dict[str, Any],
    progress: Progress,
    stop: Stop,
) -> Progress:
    """Evaluates, writes the line of metrics with the results, and keeps the model if it is the best
    so far.

    On a signal, the newest checkpoint records that this evaluation is pending before `Interrupted`
    is raised.
    """
    select, options = experiment.config.train.select, experiment.config.evaluation
    distance = experiment.method.distance
    name = "validation" if "validation" in experiment.splits and select != "test" else "test"
    splits = with_gallery(experiment.splits, name)

    def on_progress(done: int) -> None:
        stop.raise_if_stopped()

    try:
        model = inference_state(state)
        found = {
            variant: model_metrics.metrics(experiment.config, distance, splits, rows, cluster=False)
            for variant, rows in tested.embed(model, splits, on_progress).items()
        }
        variant = model_metrics.reported(options, found)
        results = found[variant]
        seen = model_metrics.of_training_classes(
            experiment, tested, variant, model, splits[name], on_progress
        )
    except Interrupted:
        save_unless_held(out, state, progress._replace(pending=line))
        raise
    progress = progress._replace(pending=None)
    values = {f"{name}/{metric}": value for metric, value in results.items()}
    for other in filter(None, found):
        values[f"{name}/recall@1 {other}"] = found[other]["recall@1"]
    out.metrics.write(line | seen | values)
    # Processes may rank near ties differently.
    recall = process_group.decided_by_first(lambda: float(results["recall@1"]))
    shown = f"Recall@1 {recall:.1%}  MAP@R {results['map@r']:.1%}"
    which = f"  ({variant})" if variant else ""
    out.console.print(f"step {int(state.step)}: {name} {shown}{which}")
    if not experiment.config.train.selects_steps or recall <= progress.best:
        return progress
    out.checkpoints.save("best", state, {"recall@1": recall}, background=True)
    return progress._replace(best=recall)


def refresh_steps(refresh: Refresh | None, sampler: Sampler, steps: int) -> frozenset[int]:
    """The numbers of steps of a run of `steps` after which a refresh is due, including 0."""
    if not refresh or not refresh.epochs:
        return frozenset([0] if refresh else [])
    starts = (sampler.first_step(epoch) for epoch in count(0, refresh.epochs))
    return frozenset(takewhile(lambda step: step < steps, starts))


def refresh_state(
    experiment: Experiment,
    out: Records,
    features: Embedder,
    state: TrainState,
    progress: Progress,
    stop: Stop,
) -> TrainState:
    """The state after the method's refresh, a function of the state before.

    On a signal, that state is on disk before `Interrupted` is raised.
    """
    out.console.print(f"step {int(state.step)}: computing features of all training images")
    refresh = experiment.method.hooks.refresh
    assert refresh is not None
    train, given = experiment.splits["train"], experiment.features
    try:
        if given is not None:  # the first view is that of the evaluation
            found = np.asarray(jax.jit(refresh.features)(*state[1:3], given[:, 0]))
        else:
            found = features.embed_split(state, train, lambda done: stop.raise_if_stopped())
    except Interrupted:
        save_unless_held(out, state, progress)
        raise
    key = jax.random.fold_in(jax.random.fold_in(experiment.key, 2**31 - 2), int(state.step))
    local = jax.tree.map(np.asarray, (state.params, state.model_state))
    updated = refresh.update(*local, found, key)
    params, model_state = device_mesh.place(experiment.mesh, updated)
    return state._replace(params=params, model_state=model_state)
