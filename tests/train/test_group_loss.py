"""The training step of the Group Loss for accelerators."""

import pytest

from tests import test_configs
from tests.lab import test_compilation


@pytest.mark.slow
@pytest.mark.parametrize("name", test_configs.names("group_loss"))
def test_a_float32_step_lowers_for_accelerators_in_float32(name: str) -> None:
    test_compilation.check_lowers_in_float32(name)
