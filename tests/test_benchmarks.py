"""The comparison of benchmarks with earlier ones; what is measured, mutated and interrupted."""

import re
from functools import partial
from textwrap import dedent

import jax
import numpy as np
import pytest
from jax import lax

from benchmarks import accelerators, authors, hlo, interruptions, mutation, timing, training_step
from benchmarks import all as benchmarks
from benchmarks.input import Costs
from tests.lab.topologies import on_this_machine
from tests.papers import paper_of


def measured(**ratios: float) -> dict[str, dict[str, object]]:
    rows = [timing.summary(case, np.ones(3), np.full(3, ratio)) for case, ratio in ratios.items()]
    return {"losses": {"date": "2026-01-01", "machine": "2 cores", "rows": rows}}


def test_a_ratio_that_falls_by_more_than_the_tolerance_is_named() -> None:
    new = measured(triplet=1.4, margin=1.6, arcface=3.0, new=0.1, unpeered=np.nan)
    old = measured(triplet=2.0, margin=2.0, arcface=2.0, unpeered=2.0)
    assert benchmarks.regressions(new, old, 0.25) == ["losses, triplet: 1.40 times as fast as the peer, 2.00 before"]


def test_mutated_modules_and_their_tests_exist() -> None:
    files = [f"dml_jax/{module}.py" for module in mutation.TESTS]
    files += [f"tests/{name}.py" for names in mutation.TESTS.values() for name in names.split()]
    absent = [file for file in files if not (mutation.ROOT / file).exists()]
    assert [file for file in absent if not paper_of(file)] == []


def test_measured_and_interrupted_configurations_exist() -> None:
    named = [*training_step.cases(), *(case.config for case in accelerators.cases())]
    named += [configuration for configuration, *_ in interruptions.runs().values()]
    files = {f"configs/{re.split('[,:@]', name)[0]}.py" for name in named}
    files |= {case.config.partition(":")[0] for case in authors.CASES.values()}
    assert [file for file in files if not (mutation.ROOT / file).exists()] == []
    assert set(training_step.peers()) <= {case.partition(",")[0] for case in training_step.cases()}


def test_what_cores_read() -> None:
    """A millisecond of work, a quarter of it with Python's lock, and a tenth to hand it over."""
    cost = Costs(0.1, 0.5, 0.3, 0.1, handing=0.1, locked=0.25)
    assert np.allclose([cost.by_threads(cores) for cores in (1, 2, 16)], [1000, 2000, 4000])
    assert np.allclose([cost.by_workers(cores) for cores in (1, 2, 208)], [10000 / 11, 20000 / 11, 10000])


@pytest.mark.slow
def test_facts_of_compiled_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    """By hand: of a program, whose loop runs three times, and of a convolution in a loop; and a
    row of the table, compiled for this machine."""
    five = "\n".join(f"%n{i} = f32[8]{{0}} negate(%a)" for i in range(5))
    text = f"""
    %body (p: f32[8]) -> f32[8] {{
      %p = f32[8]{{0}} parameter(0)
      ROOT %q = f32[8]{{0}} copy(%p)
    }}
    %fused (x: f32[100], y: f32[8]) -> f32[] {{
      %x = f32[100]{{0}} parameter(0)
      %y = f32[8]{{0}} parameter(1)
      %z = f32[8]{{0}} slice(%x), slice={{[0:8]}}
      ROOT %u = f32[] reduce(%z, %y), dimensions={{0}}, to_apply=%add
    }}
    ENTRY %main (a: f32[8], b: f32[100]) -> f32[8] {{
      %a = f32[8]{{0}} parameter(0)
      %b = f32[100]{{0}} parameter(1)
      {five}
      %c = (f32[8]{{0}}, u8[0]{{0}}) custom-call(%a, %a), custom_call_target="__cudnn$convForward"
      %d = (f32[8]{{0}}, s8[8]{{0}}) custom-call(%a, %a), custom_call_target="__cublas$lt$matmul"
      %r = f32[] fusion(%b, %a), kind=kInput, calls=%fused
      %s = f32[8]{{0}} all-reduce-start(%a), to_apply=%add
      %t = f32[8]{{0}} all-reduce-done(%s)
      ROOT %w = f32[8]{{0}} while(%t), condition=%cond, body=%body, backend_config={{"known_trip_count":{{"n":"3"}}}}
    }}
    """
    kinds = {"elementwise": 5, "copy": 3, "convolution": 1, "product": 1, "reduction": 1}
    assert hlo.launches(dedent(text)) == {
        "kinds": kinds | {"collective": 1},
        "graphs": 1,
        "in graphs": 5,
        "with convolutions": {"graphs": 1, "in graphs": 8},
    }
    assert hlo.traffic(dedent(text)) == 5 * 64 + 96 + 96 + 68 + 64 + 3 * 64  # without scratch, s8[8]
    assert hlo.copies(dedent(text)) == {"count": 1, "bytes": 32}

    def repeated(x: jax.Array, kernel: jax.Array) -> jax.Array:
        convolve = partial(lax.conv_general_dilated, window_strides=(1, 1), padding="SAME")
        return lax.scan(lambda x, _: (convolve(x, kernel), None), x, length=7)[0]

    jaxpr = jax.make_jaxpr(repeated)(np.ones((2, 3, 9, 9)), np.ones((3, 3, 5, 5))).jaxpr
    assert hlo.flops(jaxpr, "cuda") == 7 * 2 * (2 * 3 * 9 * 9) * (3 * 5 * 5)

    monkeypatch.setattr(accelerators.compilation, "find_topology", lambda _: on_this_machine(2))
    case = accelerators.Case("digits_baseline", "float32", "v5e:2x2")
    row = accelerators.row(case, accelerators.facts(case, {}))
    assert (row["batch"], row["by"]) == ("64", "memory")
    assert float(row["GFLOP"]) > 2
