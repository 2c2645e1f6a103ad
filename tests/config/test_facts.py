"""The papers' configurations: results beside their runs, what they share with baselines, one step."""

from pathlib import Path

import pytest

from configs import published
from tests import configurations as own
from tests.config.cases import of_papers

FACTS = of_papers().values()


@pytest.mark.parametrize(("config", "protocol", "sources"), [case for facts in FACTS for case in facts.beside])
def test_published_results_beside_runs(config: str, protocol: str, sources: dict[str, dict[str, float]]) -> None:
    found = published.beside_runs(config).get(protocol, {})
    assert found.keys() == sources.keys()
    for name, numbers in sources.items():
        assert found[name].items() >= numbers.items()


@pytest.mark.parametrize("config", [config for facts in FACTS for config in facts.as_baseline])
def test_the_baselines_differ_by_the_method_alone(config: str) -> None:
    assert own.kept(own.values(config)) == own.kept(own.values(f"{config.split('_')[0]}_baseline"))


@pytest.mark.parametrize(("config", "variant"), [facts.photos for facts in FACTS if facts.photos])
def test_one_step_on_photos(config: str, variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    own.check_one_step_on_photos(config, variant, tmp_path)
