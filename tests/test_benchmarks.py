"""The comparison of benchmarks with earlier ones; what is measured, mutated and interrupted."""

import re

import numpy as np

from benchmarks import accelerators, authors, interruptions, mutation, timing, training_step
from benchmarks import all as benchmarks
from benchmarks.input import Costs
from tests.papers import deleted


def measured(**ratios: float) -> dict[str, dict[str, object]]:
    rows = [timing.summary(case, np.ones(3), np.full(3, ratio)) for case, ratio in ratios.items()]
    return {"losses": {"date": "2026-01-01", "machine": "2 cores", "rows": rows}}


def test_a_ratio_that_falls_by_more_than_the_tolerance_is_named() -> None:
    new = measured(triplet=1.4, margin=1.6, arcface=3.0, new=0.1, unpeered=np.nan)
    old = measured(triplet=2.0, margin=2.0, arcface=2.0, unpeered=2.0)
    assert benchmarks.regressions(new, old, 0.25) == [
        "losses, triplet: 1.40 times as fast as the peer, 2.00 before"
    ]


def test_mutated_modules_and_their_tests_exist() -> None:
    for module, tests in mutation.TESTS.items():
        assert (mutation.ROOT / "dml_jax" / f"{module}.py").exists(), module
        for name in tests:
            assert (mutation.ROOT / "tests" / f"{name}.py").exists() or deleted(name), name


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
    assert np.allclose(
        [cost.by_workers(cores) for cores in (1, 2, 208)], [10000 / 11, 20000 / 11, 10000]
    )
