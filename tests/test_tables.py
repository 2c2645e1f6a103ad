"""Tables of measurements in pages, and the tests of equivalence with the authors' code."""

import json
import re
from pathlib import Path
from statistics import mean, stdev

import numpy as np
import pytest
from scipy import stats

from benchmarks import authors, tables
from benchmarks.authors import Sample


@pytest.mark.parametrize("page", [*tables.pages()], ids=lambda page: page.name)
def test_pages_have_the_stored_tables(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert tables.filled(text) == text, "run python -m benchmarks.tables"


def test_every_result_says_how_it_was_measured_and_is_shown() -> None:
    every = [tables.ROOT / "README.md", *tables.ROOT.glob("*/**/*.md")]
    texts = [page.read_text(encoding="utf-8") for page in every]
    for path in tables.RESULTS.glob("*.json"):
        found = json.loads(path.read_text(encoding="utf-8"))
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", found["date"])
        assert all(found[key] for key in ("command", "commit", "machine"))
        assert len({len(row) for row in found["table"]}) == 1, path
        assert any(path.stem in text for text in texts), f"{path} is in no page"


def test_equivalence_and_spread() -> None:
    """As SciPy's Welch tests of the values themselves and F test."""
    random = np.random.default_rng(0)
    first, second = random.normal(50, 0.4, 8), random.normal(50.2, 0.9, 8)
    ours, theirs = (Sample(mean(x), stdev(x), 8) for x in (first.tolist(), second.tolist()))
    tests = [
        stats.ttest_ind(first + shift, second, equal_var=False, alternative=side).pvalue
        for shift, side in ((1, "greater"), (-1, "less"))
    ]
    assert authors.equivalence(ours, theirs, 1) == pytest.approx(max(tests))
    ratio = second.var(ddof=1) / first.var(ddof=1)
    assert authors.spread(ours, theirs) == pytest.approx(2 * stats.f.sf(ratio, 7, 7))
