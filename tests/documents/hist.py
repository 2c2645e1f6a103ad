"""What the documentation shows of HIST."""

ROWS = (  # of the papers' numbers on the site, copied from the paper's tables
    "cars_hist 89.8 94.0 96.5 – – 75.5 paper, Lim et al.",
)
TEXTS = ("hist:alpha-cars", "embedding_dim=1024 hidden_dim=256 88.67")
OPTIONS = ("method.tau",)
NOT_EXECUTED = {  # as in test_docs.py
    "hist.py:layers": "needs Cars196 or Omniglot, and hours",
    "hist-layers": "needs such a study",
}
