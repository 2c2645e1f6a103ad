"""What the documentation shows of MPN."""

ROWS = (
    "cars_mpn 86.7 ± 0.48 ",
)  # of the papers' numbers on the site, copied from the paper's tables
TEXTS = ()
OPTIONS = ("method.heads",)
NOT_EXECUTED = {"weights/mpn": "needs the authors' weights"}  # as in test_docs.py
