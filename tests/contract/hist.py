"""HIST in the tests of the contract."""

from dml_jax.methods import hist
from tests.contract.cases import BODY, DATA, DIM, LARGE_DATA, Large, Small

SMALL = {
    "hist": Small(
        lambda body: hist.build(hist.Config(embedding_dim=8, hidden_dim=8), body, DATA),
        slow_chunks=False,
    )
}
LARGE = {
    "hist": Large(
        lambda: (
            hist.build(hist.Config(embedding_dim=DIM, hidden_dim=DIM), BODY, LARGE_DATA),
            None,
        ),
        slow=False,
        slow_trace=False,
    )
}
INTERRUPTED = {
    "hist": ("digits_hist", "method.embedding_dim=8", "method.hidden_dim=8"),
    "hist, best of test": (
        "digits_hist",
        "method.embedding_dim=8",
        "train.select=test",
        "train.evaluate_every=10",
    ),
}
