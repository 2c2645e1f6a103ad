"""FLOPs of a step against a count by hand; speed and utilisation of an interval; the traced steps."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from dml_jax.methods.contract import Aux
from dml_jax.train import experiment as experiments
from dml_jax.train.experiment import Experiment
from dml_jax.train.records import timing
from dml_jax.train.records.timing import Trace
from tests.train.experiments import small


@pytest.fixture(scope="module")
def experiment() -> Experiment:
    return experiments.build(small(steps=1))


def flops(experiment: Experiment) -> float:
    key = jax.eval_shape(lambda: experiment.key)
    return timing.step_flops(experiment, experiment.template(), experiment.example_batch(), key)


def test_flops_of_a_linear_model(experiment: Experiment) -> None:
    """Embedding B images of P values in 4,096 dimensions takes 2·B·P·4096, and so does the gradient of the weights."""
    size = experiment.config.data.batch_size
    values = experiment.shape[0] * experiment.shape[1] * 3

    def init(key: jax.Array, batch: Any) -> Any:
        return {"weights": jnp.zeros((values, 4096))}, {}

    def encode(params: Any, state: Any, images: jax.Array, *, train: bool, key: jax.Array) -> Any:
        return images.reshape(size, values) @ params["weights"], state

    def loss(params: Any, state: Any, encoded: jax.Array, *rest: Any) -> Any:
        return jnp.sum(encoded**2), Aux(state, {}, None)

    linear = experiment.method._replace(init=init, encode=encode, loss=loss, group=lambda path: "backbone")
    sgd = experiments.optax.sgd(0.1)
    counted = flops(experiment._replace(method=linear, optimizer=sgd, augment=lambda images, key: images))
    assert counted == pytest.approx(4 * size * values * 4096, rel=0.1)


def test_flops_of_a_convolutional_step_as_xla_counts_them(experiment: Experiment) -> None:
    """XLA also counts everything else, and leaves out padding: both are small here."""
    shapes = {"first": (3, 3, 3, 32), "second": (3, 3, 32, 64)}

    def init(key: jax.Array, batch: Any) -> Any:
        return {name: jnp.zeros(shape) for name, shape in shapes.items()}, {}

    def encode(params: Any, state: Any, images: jax.Array, *, train: bool, key: jax.Array) -> Any:
        x = images[0].astype(jnp.float32)
        for name in shapes:
            x = jax.lax.conv_general_dilated(
                x, params[name], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        return x.mean((1, 2)), state

    def loss(params: Any, state: Any, encoded: jax.Array, *rest: Any) -> Any:
        return jnp.sum(encoded**2), Aux(state, {}, None)

    method = experiment.method._replace(init=init, encode=encode, loss=loss, group=lambda path: "backbone")
    changed = experiment._replace(
        method=method, optimizer=experiments.optax.sgd(0.1), augment=lambda images, key: images, shape=(64, 64)
    )
    key = jax.eval_shape(lambda: experiment.key)
    lowered = changed.jitted_step().lower(changed.template(), changed.example_batch(), key)
    assert flops(changed) == pytest.approx(lowered.cost_analysis()["flops"], rel=0.05)


@pytest.mark.parametrize(
    ("kind", "rate"),
    [
        ("NVIDIA H100 80GB HBM3", 989e12), ("NVIDIA H100 PCIe", 756e12), ("NVIDIA A100-SXM4-40GB", 312e12),
        ("NVIDIA L40S", 362e12), ("TPU v5 lite", 197e12), ("TPU v5p", 459e12), ("cpu", None), ("Tesla T4", None),
    ],
)  # fmt: skip
def test_peak_rates(kind: str, rate: float | None) -> None:
    assert timing.peak_rate(kind) == rate


def test_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten steps of 32 images on four devices in 5 s, 1 s of it waiting; at the peak rate a step would take 0.1 s."""
    now, batches = [100.0], SimpleNamespace(waited=7.0)
    monkeypatch.setattr(timing.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(timing, "peak_memory", lambda: 3 * 2**30)
    clock = timing.Meter(batches, 32, 20)  # type: ignore[arg-type]
    clock.fastest = 0.1
    now[0], batches.waited = 105.0, 8.0
    line = clock.read(30)
    assert line == {
        "step": 30, "images_per_second": 64.0, "data_wait": 0.2,
        "peak_memory": 3 * 2**30, "step_seconds": 0.5, "flop_utilisation": 0.2,
    }  # fmt: skip
    text = "64 images/s  500 ms a step  waiting for data 20%  memory 3.0 GiB  FLOP utilisation 20%"
    assert timing.describe(line) == text
    assert clock.read(30).keys() == line.keys() - {"step_seconds", "flop_utilisation"}


@pytest.mark.parametrize(("steps", "start", "traced"), [((2, 3), 1, [2, 3]), ((2, 4), 3, [3, 4]), ((2, 3), 4, [])])
def test_traced_steps(
    steps: tuple[int, int], start: int, traced: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first step, or the one at which a run continues, to the last."""
    events: list[Any] = []
    monkeypatch.setattr(jax.profiler, "start_trace", lambda directory: events.append("start"))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: events.append("stop"))
    trace = Trace(tmp_path, steps)
    for step in range(start, 6):
        trace.before(step)
        events.append(step)
        assert trace.after(step, ()) == (step == traced[-1] if traced else False)
    inside = events[events.index("start") + 1 : events.index("stop")] if traced else []
    assert inside == traced
    assert events.count("start") == events.count("stop") == bool(traced)
