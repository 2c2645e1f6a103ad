"""The guides' examples are these files, and they run."""

import re
from pathlib import Path

import pytest

from tests.plugins import own_loop

HERE = Path(__file__).parent
GUIDES = HERE.parents[1] / "docs" / "guides"


@pytest.mark.parametrize(
    ("page", "files"),
    [
        ("own_paper.md", ["method.py", "experiment.py", "comparison.py"]),
        ("own_loop.md", ["own_loop.py"]),
        (
            "own_parts.md",
            ["loss.py", "sampler.py", "optimizer.py", "distance.py", "metric.py", "step.py", "relation.py"],
        ),
    ],
)
def test_the_pages_show_the_files(page: str, files: list[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (GUIDES / page).read_text(), re.DOTALL)
    assert blocks == [(HERE / name).read_text() for name in files]


def test_a_loop_of_ones_own() -> None:
    assert own_loop.train(steps=60)["recall@1"] > 0.3  # of five classes
