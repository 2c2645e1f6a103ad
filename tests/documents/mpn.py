"""What the documentation shows of MPN."""

ROWS = (
    "cars_mpn 86.7 ± 0.48",
    "cars_baseline 84.2 90.4 94.4 96.9",
)  # of the papers' numbers on the site, copied from the paper's tables
TEXTS = ()
OPTIONS = ("method.heads",)
NOT_EXECUTED = {"weights/mpn": "needs the authors' weights"}  # as in test_docs.py
