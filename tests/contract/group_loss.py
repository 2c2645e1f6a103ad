"""The Group Loss in the tests of the contract."""

from dml_jax.methods import group_loss
from tests.contract.cases import BATCH, BODY, CLASSES, DATA, DIM, LARGE_DATA, Large, Small

CONFIG = group_loss.Config(embedding_dim=8, temperature=4.0)
SMALL = {"group_loss": Small(lambda body: group_loss.build(CONFIG, body, DATA))}
LARGE = {
    "group_loss": Large(
        lambda: (group_loss.build(group_loss.Config(embedding_dim=DIM), BODY, LARGE_DATA), None),
        # The dynamics multiply similarities with the probabilities [B, C] of the batch.
        limit=BATCH * CLASSES * 4,
        slow_trace=False,
    )
}
INTERRUPTED = {"group_loss": ("omniglot_group_loss", "method.embedding_dim=8")}
