"""Every value of every configuration is the one on its card, which was made from the sources."""

import json
import re
from functools import cache

import pytest

from configs import cards
from tests.configurations import module, resolved, variants

FILES = sorted(path.stem for path in cards.ROOT.glob("*_*.py") if "get_config" in path.read_text())


@cache
def experiments(name: str) -> list[tuple[str, dict[str, object]]]:
    """The experiments of a file, FILE[:VARIANT]@PROTOCOL, and their values."""
    protocols = ("clean", "paper") if hasattr(module(name), "PAPER_PROTOCOL") else ("clean",)
    return [
        (
            f"{name}{variant and f':{variant}'}@{protocol}",
            cards.values(resolved(name, variant, protocol if protocol == "paper" else None)),
        )
        for variant in variants(name)
        for protocol in protocols
    ]


@pytest.mark.parametrize("name", FILES)
def test_the_values_of_a_configuration_are_those_on_its_card(name: str) -> None:
    wrong = []
    for experiment, values in experiments(name):
        for key, value in values.items():
            line = cards.line_of(experiment, key)
            if line is None:
                wrong.append(f"{experiment} {key}={json.dumps(value)}: is not on the card")
            elif json.loads(line.value) != value:
                wrong.append(f"{experiment} {key}={json.dumps(value)}: the card has {line.value}")
    assert not wrong, f"{len(wrong)} values\n" + "\n".join(wrong[:60])


@pytest.mark.parametrize("folder", ["", *cards.folders()])
def test_every_line_has_a_source_and_decides_a_value(folder: str) -> None:
    lines = cards.read(folder)
    for line in lines:
        assert re.search(cards.STATES[line.state], line.source), line
    used = {
        cards.line_of(experiment, key)
        for name in FILES
        for experiment, values in experiments(name)
        if folder in cards.folders_of(experiment)
        for key in values
    }
    assert [line for line in lines if line not in used] == []
