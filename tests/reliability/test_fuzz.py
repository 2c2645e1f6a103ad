"""Hostile input ends in success or in one error line; `python -m benchmarks.faults` runs the same with more cases."""

import warnings

import pytest
from hypothesis import HealthCheck, given, settings

from dml_jax.data import decode
from dml_jax.errors import DataError
from tests.reliability import sandbox
from tests.reliability.attacks import ATTACKS

pytestmark = pytest.mark.slow
ALWAYS_THE_SAME = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
CASES = 20  # times an attack's share; about 2,000 in all


@pytest.mark.parametrize("name", ATTACKS)
def test_success_or_one_error_line(name: str) -> None:
    attack = ATTACKS[name]

    @settings(ALWAYS_THE_SAME, max_examples=CASES * attack.share)
    @given(files=attack.files)
    def check(files: sandbox.Files) -> None:
        outcome = sandbox.run(attack.read, files)
        assert outcome.kind != "failure", outcome.text

    check()


def _fail(error: Exception) -> None:
    raise error


def test_the_sandbox() -> None:
    assert sandbox.run(lambda d: _fail(KeyError("x")), {"a/b": b"x"}).text.startswith("KeyError at ")
    assert sandbox.run(lambda d: (d / "c").write_bytes((d / "a").read_bytes()), {"a": b"x"}).kind == "success"
    assert sandbox.run(lambda d: _fail(DataError("two\nlines")), {}) == ("error", "error: two lines")


def test_only_the_error_is_printed() -> None:
    """Pillow warns of this TIFF file, whose only tag lies behind its end."""
    tiff = b"II*\0\x08\0\0\0\x01\0" + (284).to_bytes(2, "little") + b"\x05\0\x09\0\0\0\xff\xff\0\0" + bytes(4)

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        outcome = sandbox.run(lambda d: decode.rgb((d / "x.tif").read_bytes()), {"x.tif": tiff})
    assert outcome.text.startswith("error: not an image")
    assert not seen
