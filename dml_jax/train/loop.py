"""The training loop, read from top to bottom: batch, step, log, evaluate, save.

Exactness: batch i is a pure function of (seed, i) and the step folds its number into the key, so the state alone says
how a run goes on. A line of metrics is on disk before the checkpoint that follows it; on resuming, lines after the
checkpoint are cut and written again, the same.
"""

import time
from typing import Any, NamedTuple

import jax

from dml_jax.console import Console
from dml_jax.data import pipeline
from dml_jax.errors import DivergedError
from dml_jax.evaluation import protocol
from dml_jax.train import experiment as experiments
from dml_jax.train import inference, mesh, refresh, step, warm_start
from dml_jax.train.checkpoint import Checkpoints
from dml_jax.train.experiment import Experiment
from dml_jax.train.jsonl import Records
from dml_jax.train.signals import Interrupted, Stop
from dml_jax.train.state import TrainState


class Notes(NamedTuple):
    """What the loop remembers besides the state.

    Attributes:
      best: Recall@1 of the best model so far, negative before there is one.
      pending: the line of metrics of this step whose evaluation is still due; None where none is.
    """

    best: float = -1.0
    pending: dict[str, Any] | None = None


def train(
    experiment: Experiment, store: Checkpoints, metrics: Records, timing: Records, console: Console, stop: Stop
) -> TrainState:
    """Trains from the newest checkpoint, or from the start, to the last step.

    Args:
      experiment: the experiment.
      store: its checkpoints.
      metrics: gets the lines of `metrics.jsonl`.
      timing: gets the clock's readings.
      screen: shows the progress.
      stop: SIGTERM or Ctrl-C.

    Returns:
      The state after the last step.

    Raises:
      Interrupted: on a signal, once a checkpoint of the step is on disk.
      DivergedError: the loss or the gradient is not finite; the newest checkpoint is from before.
    """
    config, total = experiment.config.train, experiment.steps
    restored = store.restore()
    if restored:
        state, notes = restored[0], Notes(**restored[1])
        console.say(f"resuming from step {int(state.step)}")
    else:
        state, notes = warm_start.begin(experiment, console), Notes()
        if experiment.method.fill:
            state = state._replace(model_state=_filled(experiment, state))
    start = int(state.step)
    store.drop_newer("best", start)
    metrics.cut(start - 1 if notes.pending else start)
    timing.cut(start)

    update = jax.jit(step.build(experiment.method, experiment.optimizer, experiment.augment), donate_argnums=0)
    embedder, describe = inference.compiled(experiment), refresh.compiled(experiment)
    key = mesh.replicate(experiment.mesh, experiments.key(experiment.config))
    schedule = experiment.schedule

    def judge(state: TrainState, line: dict[str, Any], notes: Notes) -> Notes:
        """Evaluates, completes and writes the line; keeps the model if it is the best so far.

        What is on disk already is not saved again: a kill meanwhile would lose it.
        """
        name = "validation" if "validation" in experiment.splits and config.select != "test" else "test"
        try:
            found = evaluate(experiment, embedder, state, name, stop)
        except Interrupted:
            if int(state.step) > start:
                store.save("latest", state, notes._replace(pending=line)._asdict())
            raise
        metrics.write({**line, **{f"{name}/{metric}": value for metric, value in found.items()}})
        console.say(f"step {int(state.step)}: {name} Recall@1 {found['recall@1']:.4f}  MAP@R {found['map@r']:.4f}")
        if config.select == "last" or found["recall@1"] <= notes.best:
            return notes
        store.save("best", state, {"recall@1": found["recall@1"]})
        return notes._replace(best=found["recall@1"])

    def refreshed(state: TrainState, describe: inference.Embedder) -> TrainState:
        """What the method learns from all training images; a signal meanwhile leaves the state from before on disk."""
        console.say(f"step {int(state.step)}: looking at all training images")
        try:
            return refresh.refreshed(experiment, describe, state, stop)
        except Interrupted:
            if int(state.step) not in store.steps():
                store.save("latest", state, notes._asdict())
            raise

    if notes.pending:
        notes = judge(state, notes.pending, notes._replace(pending=None))

    hosts = {"host": jax.process_index(), "hosts": jax.process_count()}
    batches = pipeline.training(
        experiment.splits["train"], experiment.sampler, experiment.config.data,
        seed=experiment.config.seed, views=experiment.method.views, start=start, stop=total, **hosts,
    )  # fmt: skip
    reloads = {experiment.sampler.first_step(config.warmup_epochs + epoch) for epoch in config.reload_best_epochs}
    refreshes = refresh.steps(experiment)
    if stop.agreed():
        if not restored:
            store.save("latest", state, notes._asdict())
        raise Interrupted(stop.agreed())
    console.say("compiling the training step")
    began, waited, since = time.monotonic(), batches.waited, start
    before: dict[str, jax.Array] | None = None
    with batches:
        for done in range(start + 1, total + 1):
            arrays = next(batches)
            if done - 1 in reloads and (best := store.restore("best")):
                state = state._replace(params=best[0].params, model_state=best[0].model_state)
            if describe and done - 1 in refreshes:
                if before is not None:
                    finite(before, done - 1)
                state = refreshed(state, describe)
                began, waited, since = time.monotonic(), batches.waited, done - 1
            state, terms = update(state, experiments.batch(experiment, *arrays), key)
            if before is not None:
                finite(before, done - 1)  # one step behind, so that the devices never wait for the host
            before = terms
            if done == start + 1:
                jax.block_until_ready(terms)  # so that the rates below leave out the compilation
                console.begin("training", total, done)
                began, waited, since = time.monotonic(), batches.waited, done

            logging = done % config.log_every == 0 or done == total
            evaluating = (config.select != "last" and done == total) or _due(experiment, done)
            # Several processes ask each other, which waits for the devices: not at every step.
            asking = jax.process_count() == 1 or logging
            stopping = asking and bool(stop.agreed())
            saving = done % config.checkpoint_every == 0 or done == total or stopping
            if not (logging or evaluating or saving):
                continue
            values = finite(terms, done)
            line = {"step": done, **values, "learning_rate_factor": float(schedule(done - 1))}
            if logging:
                now = time.monotonic()
                rate = (done - since) * experiment.config.data.batch_size / max(now - began, 1e-9)
                clock = {
                    "step": done,
                    "images_per_second": rate,
                    "data_wait": (batches.waited - waited) / max(now - began, 1e-9),
                }
                timing.write(clock)
                console.advance(
                    done,
                    f"loss {values['loss']:.4f}  {rate:.0f} images/s  waiting for data {clock['data_wait']:.0%}",
                )
                began, waited, since = now, batches.waited, done
            if evaluating:
                former, notes = notes, judge(state, line, notes)
                saving = saving or notes != former  # never two best models ahead of the newest checkpoint
                began, waited, since = time.monotonic(), batches.waited, done
            elif logging:
                metrics.write(line)
            if saving:
                store.save("latest", state, notes._asdict())
            if stopping:
                raise Interrupted(stop.agreed())
    return state


def _due(experiment: Experiment, done: int) -> bool:
    """Whether an evaluation follows this many steps."""
    config = experiment.config.train
    if config.evaluate_every:
        return done % config.evaluate_every == 0
    return config.epochs > 0 and experiment.sampler.epoch(done) != experiment.sampler.epoch(done - 1)


def finite(terms: dict[str, jax.Array], number: int) -> dict[str, float]:
    """The terms as numbers.

    Raises:
      DivergedError: one of them is not finite.
    """
    values = {name: float(value) for name, value in jax.device_get(terms).items()}
    if bad := [name for name, value in values.items() if not abs(value) < float("inf")]:
        shown = ", ".join(f"{name}={values[name]}" for name in bad)
        raise DivergedError(f"training diverged at step {number}: {shown}; lower the learning rates and start again")
    return values


def _filled(experiment: Experiment, state: TrainState) -> Any:
    """What the method wants to see before the first step: batches as the run brings them, as many as it takes."""
    assert experiment.method.fill is not None
    hosts = {"host": jax.process_index(), "hosts": jax.process_count()}
    with pipeline.training(
        experiment.splits["train"], experiment.sampler, experiment.config.data,
        seed=experiment.config.seed, views=experiment.method.views, stop=2**31 - 1, **hosts,
    ) as batches:  # fmt: skip
        return experiment.method.fill(
            state.params, state.model_state, (experiments.batch(experiment, *arrays) for arrays in batches)
        )


def evaluate(
    experiment: Experiment, embedder: inference.Embedder, state: TrainState, name: str, stop: Stop | None = None
) -> dict[str, float]:
    """Retrieval metrics of one split.

    Raises:
      Interrupted: a signal came meanwhile.
    """

    def each(done: int) -> None:
        if stop and stop.signal and jax.process_count() == 1:
            raise Interrupted(stop.signal)

    images = experiment.splits[name]
    embeddings = inference.split(experiment, embedder, state.params, state.model_state, images, each)
    options: dict[str, Any] = {}
    if images.gallery is not None:
        options["gallery"] = inference.split(
            experiment, embedder, state.params, state.model_state, images.gallery, each
        )
        options["gallery_labels"] = images.gallery.labels
    judged = experiment.config.evaluation
    return protocol.evaluate(
        embeddings, images.labels, ks=judged.ks, protocol=judged.protocol, cluster=False, **options
    )
