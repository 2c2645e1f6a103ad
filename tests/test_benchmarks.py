"""The comparison of benchmarks with earlier ones; what is measured, mutated and interrupted."""

import re

import numpy as np

from benchmarks import accelerators, interruptions, mutation, timing, training_step
from benchmarks import all as benchmarks
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
    for name in {re.split("[,:@]", name)[0] for name in (*named, *training_step.peers())}:
        assert (mutation.ROOT / "configs" / f"{name}.py").exists(), name
