"""MPN passes `dml-jax check`."""

import pytest

from tests.contract.conforming import examined


@pytest.mark.slow
def test_all_checks_pass() -> None:
    assert {one.result for one in examined("mpn").values()} == {"passed"}
