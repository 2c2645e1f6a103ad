"""MPN in the tests of the contract."""

from dml_jax.methods import mpn
from tests.contract.cases import BODY, DATA, DIM, LARGE_DATA, Large, Small

CONFIG = mpn.Config(embedding_dim=8, heads=2, layers=2, dropout=0.0)
SMALL = {"mpn": Small(lambda body: mpn.build(CONFIG, body, DATA))}
FROZEN = (CONFIG, ("backbone", "mpn"), {"neck": "mpn"})
WIDE = mpn.Config(embedding_dim=DIM, heads=2, layers=1)
LARGE = {"mpn": Large(lambda: (mpn.build(WIDE, BODY, LARGE_DATA), None))}
INTERRUPTED = {"mpn": ("omniglot_mpn", "method.embedding_dim=8")}
