"""The table of a trace: a made-up one of two GPUs, and a real one of this machine."""

from pathlib import Path

import jax
import numpy as np
import pytest
from jax.profiler import ProfileData

from dml_jax.lab import profile
from dml_jax.train import loop

HLO = """
%body (p: f32[8]) -> f32[8] {
  %p = f32[8]{0} parameter(0)
  ROOT %inner.2 = f32[8]{0} negate(%p)
}
ENTRY %main (a: f32[8]) -> f32[8] {
  %a = f32[8]{0} parameter(0)
  %conv.1 = (f32[8]{0}, u8[0]{0}) custom-call(%a, %a), custom_call_target="__cudnn$convForward"
  %sum.1 = f32[8]{0} all-reduce-start(%a), to_apply=%add
  ROOT %loop.1 = f32[8]{0} while(%a), condition=%cond, body=%body
}
"""
NAMES = ["PjitFunction(update)", loop.WAITING, "kernel", "hlo_op", "hlo_module", "other"]
NAMES += ["conv.1", "sum.1", "loop.1", "inner.2", "jit_update", "jit_other"]
TPU = "%conv.1 = (f32[8]{0}, u8[0]{0}) custom-call(%a, %a)"
NAMES += [TPU, "end: conv.1", "_p", "_c"]


def event(
    name: str,
    first: int,
    last: int,
    operation: str = "",
    module: str = "jit_update",
    **numbers: int,
) -> str:
    stats = {"hlo_op": operation, "hlo_module": module} if operation else {}
    shown = " ".join(
        f"stats {{ metadata_id: {NAMES.index(key) + 1} str_value: '{value}' }}"
        for key, value in stats.items()
    )
    shown += " ".join(
        f"stats {{ metadata_id: {NAMES.index(key) + 1} uint64_value: {value} }}"
        for key, value in numbers.items()
    )
    times = f"offset_ps: {first * 10**6} duration_ps: {(last - first) * 10**6}"
    return f"events {{ metadata_id: {NAMES.index(name) + 1} {times} {shown} }}"


def plane(name: str, lines: dict[str, list[str]]) -> str:
    """Times are in microseconds."""
    tables = "".join(
        f"{kind}_metadata {{ key: {i} value {{ id: {i} name: '{each}' }} }} "
        for kind in ("event", "stat")
        for i, each in enumerate(NAMES, 1)
    )
    shown = "".join(
        f"lines {{ name: '{line}' timestamp_ns: 0 {' '.join(found)} }} "
        for line, found in lines.items()
    )
    return f"planes {{ name: '{name}' {shown} {tables} }} "


def gpu(late: int) -> dict[str, list[str]]:
    """In each of two steps of 100 us: 40 of convolutions and 10 of an inner operation; of 30 of
    the sum, 20 are beside the convolution. A loop is more than its operations."""
    steps = [100 * step + late for step in range(2)]
    return {
        "Stream #1": [
            found
            for start in steps
            for found in (
                event("kernel", start, start + 40, "conv.1"),
                event("kernel", start + 50, start + 70, "loop.1"),
                event("kernel", start + 55, start + 65, "inner.2"),
                event("kernel", start + 80, start + 90, "conv.1", module="jit_other"),
            )
        ],
        "Stream #2": [event("kernel", start + 20, start + 50, "sum.1") for start in steps],
    }


def test_means_of_two_gpus() -> None:
    host = [
        found
        for start in (0, 100)
        for found in (
            event("PjitFunction(update)", start + 5, start + 12),
            event("PjitFunction(update)", start + 6, start + 12),  # within the other
            event(loop.WAITING, start, start + 4),
            event("other", start, start + 90),
        )
    ]
    planes = plane("/host:CPU", {"python": host})
    planes += plane("/device:GPU:0", gpu(20)) + plane("/device:GPU:1", gpu(35))
    found = profile.measure(ProfileData.from_text_proto(planes), 2, HLO)
    assert found.kinds.keys() == {"convolution", "collective", "elementwise"}
    np.testing.assert_allclose(found.kinds["convolution"], (1, 40e-6))
    np.testing.assert_allclose(found.kinds["collective"], (1, 30e-6))
    np.testing.assert_allclose(found.kinds["elementwise"], (1, 10e-6))
    times = found.step, found.enqueue, found.waiting, found.busy, found.exposed
    np.testing.assert_allclose(times, np.array([100, 7, 4, 60, 10]) * 1e-6)
    assert found.limit == "device"
    assert found._replace(waiting=1).limit == "data"
    assert found._replace(enqueue=1).limit == "host"


def test_operations_of_a_tpu() -> None:
    """Events of the line of operations are named by the whole instruction; others enclose them."""
    host = [event("PjitFunction(update)", 0, 5), event(loop.WAITING, 5, 6)]
    shown = {"XLA Ops": [event(TPU, 10, 30)], "Steps": [event("conv.1", 0, 90)]}
    planes = plane("/host:CPU", {"python": host}) + plane("/device:TPU:0", shown)
    found = profile.measure(ProfileData.from_text_proto(planes), 1, HLO)
    assert found.kinds == {"convolution": (1, pytest.approx(20e-6))}


def test_operations_that_threads_of_a_cpu_finish() -> None:
    """Two convolutions, started for 2 us each; the first ends after 30 us, the second after 12."""
    threads = {
        "first": [event("conv.1", 10, 12, "conv.1", _p=7), event("end: conv.1", 62, 63, _c=8)],
        "second": [event("conv.1", 50, 52, "conv.1", _p=8), event("end: conv.1", 40, 41, _c=7)],
    }
    host = {"python": [event("PjitFunction(update)", 0, 5), event(loop.WAITING, 5, 6)]}
    planes = plane("/host:CPU", host | threads)
    found = profile.measure(ProfileData.from_text_proto(planes), 1, HLO)
    assert found.kinds == {"convolution": (2, pytest.approx(42e-6))}
    assert found.busy == pytest.approx(42e-6)


def test_a_trace_of_this_machine(tmp_path: Path) -> None:
    def update(x: jax.Array) -> jax.Array:
        return x @ x / 100

    step = jax.jit(update)
    x = step(np.ones((300, 300), np.float32)).block_until_ready()
    with jax.profiler.trace(tmp_path):
        for _ in range(3):
            x = step(x)
        x.block_until_ready()
    (file,) = tmp_path.rglob("*.xplane.pb")
    text = step.lower(x).compile().as_text()
    assert text
    found = profile.measure(ProfileData.from_file(str(file)), 3, text)
    assert 0 < found.enqueue <= found.step
    assert 0 < found.busy <= found.step
    assert (found.waiting, found.exposed) == (0, 0)
    assert "product" in found.kinds
