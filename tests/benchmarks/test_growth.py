"""The benchmark of growth: the fit, of numbers made up, and every job at tiny sizes."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks import growth


@pytest.mark.parametrize("power", [0.5, 1, 1.5, 2, 3])
def test_exponents_of_what_grows_beside_a_constant(power: float) -> None:
    sizes = np.array([700, 1400, 2800])
    assert growth.exponent_of_time((50 + 30 * (sizes / 700) ** power).tolist()) == pytest.approx(power)


def test_what_hardly_grows_has_no_exponent() -> None:
    assert growth.exponent_of_time([200, 190, 211]) == growth.exponent_of_time([3, 2, 1]) == 0
    assert growth.exponent_of_time([1, 3, 2]) < 0
    # Noise hides the first difference, not the second.
    assert growth.exponent_of_time([200, 199, 400]) > 2
    assert growth.exponent_of_memory([3, 2, 8]) == 2
    assert growth.exponent_of_memory([1, 2, 1]) == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", growth.JOBS)
def test_jobs(name: str) -> None:
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("the peak of the memory needs Linux")
    seconds, mebibytes = growth.measure(growth.JOBS[name], 120)
    assert seconds > 0
    assert mebibytes >= 0
