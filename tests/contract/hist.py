"""HIST in the tests of the contract."""

from dml_jax.methods import hist
from tests.contract.cases import BODY, DATA, DIM, LARGE_DATA, Large, Small

CONFIG = hist.Config(embedding_dim=8, hidden_dim=8)
WIDE = hist.Config(embedding_dim=DIM, hidden_dim=DIM)
SMALL = {"hist": Small(lambda body: hist.build(CONFIG, body, DATA), slow_chunks=False)}
LARGE = {"hist": Large(lambda: (hist.build(WIDE, BODY, LARGE_DATA), None), slow=False, slow_trace=False)}
FROZEN = (CONFIG, ("hgnn", "embedding"), {})
OF_TEST = ("train.select=test", "train.evaluate_every=10")
INTERRUPTED = {
    "hist": ("digits_hist", "method.embedding_dim=8", "method.hidden_dim=8"),
    "hist, best of test": ("digits_hist", "method.embedding_dim=8", *OF_TEST),
}
