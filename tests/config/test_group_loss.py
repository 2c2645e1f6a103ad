"""A step of the Group Loss on photographs."""

from pathlib import Path

import pytest

from tests import configurations


def test_one_step_on_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    configurations.check_one_step_on_photos("omniglot_group_loss", "", tmp_path)
