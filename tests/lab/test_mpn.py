"""The studies of MPN state the numbers of the papers, copied from their tables independently of
`configs/`; every table and figure has a place."""

from tests.lab.stated import stated
from tests.pages import check_places


def test_published_numbers() -> None:
    assert stated("mpn:embedding_size-inshop", "1024 dimensions")["recall@1"] == 0.917
    assert stated("mpn:embedding_size-cars", "64 dimensions") == {"recall@1": 0.763, "nmi": 0.681}


def test_every_table_and_figure_has_a_place() -> None:
    check_places("mpn", tables=9, figures=20)
    check_places("re_mpn", tables=3, figures=2)
