"""The studies of CRT state the numbers of the papers, copied from their tables independently of
`configs/`; every table and figure has a place."""

from tests.lab.stated import stated
from tests.pages import check_places


def test_published_numbers() -> None:
    assert stated("crt:first_prototypes-cub", "prototypes=4x64")["recall@1"] == 0.7557
    assert stated("crt:prototypes-cub", "prototypes=100x100")["recall@8"] == 0.9431
    assert stated("crt:backbones-inshop", "DeiT-S, MS")["recall@1"] == 0.9247


def test_every_table_and_figure_has_a_place() -> None:
    check_places("crt", tables=10, figures=3)
