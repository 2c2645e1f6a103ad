"""CRT in the tests of the contract."""

from dml_jax.methods import crt
from tests.contract.cases import BODY, DATA, DIM, LARGE_DATA, Large, Small

CONFIG = crt.Config(embedding_dims=(8, 12), prototypes=(4, 4), hidden_dim=8)
WIDE = crt.Config(embedding_dims=(DIM, DIM), prototypes=(4, 4), hidden_dim=DIM)
SMALL = {"crt": Small(lambda body: crt.build(CONFIG, body, DATA), slow_chunks=False)}
LARGE = {"crt": Large(lambda: (crt.build(WIDE, BODY, LARGE_DATA), None))}
SIZES = ("method.embedding_dims=(8,8)", "method.prototypes=(4,4)", "method.hidden_dim=8")
INTERRUPTED = {"crt": ("omniglot_crt", *SIZES)}
