"""The studies of HIST state the numbers of the papers, copied from their tables independently of
`configs/`; every table and figure has a place."""

from tests.lab.stated import stated
from tests.pages import check_places


def test_published_numbers() -> None:
    assert stated("hist:sizes-cars", "embedding_dim=1024 hidden_dim=256", "reproduction") == {"recall@1": 0.8867}
    assert stated("hist:tau_lambda-cars", "tau=8 lambda_s=1.5", "reproduction") == {"recall@1": 0.7863}
    assert stated("hist:tau_lambda-cars", "tau=16 lambda_s=1", "reproduction") == {}
    assert stated("hist:backbones-sop", "ResNet-50")["recall@100"] == 0.968


def test_every_table_and_figure_has_a_place() -> None:
    check_places("hist", tables=9, figures=5)
