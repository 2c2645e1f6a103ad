"""Order, headings and number formats of the reported metrics."""

import math

from dml_jax.evaluation import metric_table

RESULTS = {
    "nmi": 0.7,
    "recall@10": 0.9,
    "recall@2": 0.51234,
    "recall@2_stderr": 0.004,
    "density": 0.12345,
    "step": 3,
}


def test_cells() -> None:
    recall, _, nmi, density = metric_table.columns(RESULTS)
    assert metric_table.cell(RESULTS, recall) == "51.2 ± 0.4"
    assert metric_table.cell(RESULTS, nmi, digits=2) == "70.00"
    assert metric_table.cell(RESULTS, density) == "0.1235"
    assert metric_table.cell({}, nmi) == metric_table.cell({"nmi": None}, nmi) == "–"
    undefined = {"recall@2": math.nan, "recall@2_stderr": math.nan}  # of no query
    assert metric_table.cell(undefined, recall) == "–"
