"""Flags that XLA does not know, at which it would end the process, are left out."""

import pytest

from tests import xla_flags


def test_unknown_flags_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the user has set stays."""
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=false")
    flags = xla_flags.with_known(xla_flags.UNOPTIMIZED, "--xla_of_another_version=3")
    assert flags == f"--xla_cpu_enable_fast_math=false {xla_flags.UNOPTIMIZED}"
    monkeypatch.setenv("XLA_FLAGS", "--xla_of_another_version=3")
    assert xla_flags.with_known("--xla_of_another_version=3") == "--xla_of_another_version=3"
