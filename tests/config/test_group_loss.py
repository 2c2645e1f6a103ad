"""The Group Loss' configurations, with the values of the authors' code."""

from pathlib import Path
from typing import Any

import pytest

from tests import test_configs, test_own_data_configs
from tests.config.test_needs import check_has_no_effect

NAMES = test_configs.names("group_loss")


def test_every_configuration_and_variant_resolves_without_a_warning() -> None:
    assert NAMES == ["cub_group_loss", "cars_group_loss"]
    test_configs.check_resolve_without_a_warning("group_loss", 3)


def test_settings() -> None:
    keys = (
        "train.groups.classifier.learning_rate",
        "data.batch_size",
        "method.anchors",
        "method.temperature",
    )
    expected: dict[str, tuple[Any, ...]] = {
        "cub_group_loss": (0.0001563663718906821, 54, 2, 24.0),
        "cars_group_loss": (0.0002, 35, 3, 79.0),
    }
    test_configs.check_settings(keys, expected)


@pytest.mark.parametrize("name", NAMES)
def test_variants_and_protocols(name: str) -> None:
    test_configs.check_variants_and_protocols(name, reloaded=(30, 50))


@pytest.mark.slow
def test_variants_build() -> None:
    test_configs.check_variants_build(NAMES, lambda method: {"embedding"})


def test_every_configuration_fits_its_weights() -> None:
    test_configs.check_fit_their_weights("group_loss", {"bn_inception"})


def test_an_option_without_effect() -> None:
    check_has_no_effect("cub_group_loss method.anchors=9")


def test_one_step_on_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    test_own_data_configs.check_one_step_on_photos("omniglot_group_loss", "", tmp_path)
