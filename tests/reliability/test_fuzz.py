"""Hostile input ends in success or in one error line; `python -m benchmarks.faults` runs the same with more cases."""

import os
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

from dml_jax.data import decode
from dml_jax.errors import DataError
from tests.reliability import sandbox
from tests.reliability.attacks import ATTACKS

pytestmark = pytest.mark.slow
CASES = 20  # times an attack's share; about 2,000 in all


@pytest.mark.parametrize("name", ATTACKS)
def test_success_or_one_error_line(name: str) -> None:
    attack = ATTACKS[name]

    @settings(
        max_examples=CASES * attack.share,
        deadline=None,
        derandomize=True,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(files=attack.files)
    def check(files: sandbox.Files) -> None:
        outcome = sandbox.run(attack.read, files)
        assert outcome.kind != "failure", outcome.text

    check()


def _fail(error: Exception) -> None:
    raise error


@pytest.mark.parametrize(
    ("read", "wanted"),
    [
        (lambda d: _fail(KeyError("x")), "KeyError at "),
        (lambda d: (d.parent / "dml_jax-outside").touch(), "open outside: "),
        (lambda d: os.symlink("/etc", d.parent / "dml_jax-outside"), "os.symlink outside: "),
        (lambda d: os.system("true"), "os.system"),
        (lambda d: all(True for _ in iter(int, 1)), "TooLong"),
        (lambda d: np.ones(30_000_000).sum(), "MiB of memory"),
    ],
)
def test_the_sandbox_notices(read: object, wanted: str) -> None:
    try:
        outcome = sandbox.run(read, {"a/b": b"x"}, seconds=2, memory=2**27)  # type: ignore[arg-type]
    finally:
        (Path(tempfile.gettempdir()) / "dml_jax-outside").unlink(missing_ok=True)
    assert outcome.kind == "failure"
    assert wanted in outcome.text


def test_the_sandbox_accepts() -> None:
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
