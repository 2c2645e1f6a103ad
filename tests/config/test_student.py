"""The students' configurations."""

import pytest

from tests import test_configs
from tests.config.test_needs import check_has_no_effect

NAMES = test_configs.names("student")


def test_every_configuration_and_variant_resolves_without_a_warning() -> None:
    assert NAMES == ["cub_student", "cars_student"]
    test_configs.check_resolve_without_a_warning("student", 10)


@pytest.mark.parametrize("name", NAMES)
def test_variants_and_protocols(name: str) -> None:
    test_configs.check_variants_and_protocols(name, reloaded=(30, 50))


def test_every_configuration_fits_its_weights() -> None:
    test_configs.check_fit_their_weights("student", {"resnet50"})


def test_an_option_without_effect() -> None:
    check_has_no_effect("cub_student:imitation method.soft_temperature=3")
