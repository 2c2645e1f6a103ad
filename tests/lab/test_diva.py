"""The studies of DiVA state the numbers of the papers, copied from their tables independently of
`configs/`; every table and figure has a place."""

from tests.lab.stated import stated
from tests.pages import check_places


def test_published_numbers() -> None:
    assert stated("diva:tasks-sop", "D + DaNCE + I") == {"recall@1": 0.758, "recall@10": 0.89, "nmi": 0.898}


def test_every_table_and_figure_has_a_place() -> None:
    check_places("diva", tables=3, figures=5)
