"""The authors' checkpoints: one layer per task, below `last_linear`, and the backbone's blocks
under two names."""

from dml_jax.backbones.weights.convert import Checkpoint, Head

CHECKPOINT = Checkpoint(
    "DiVA", (Head(r"last_linear\.(\w+)", r"method/params/heads/\1"),), repeated=("layer_blocks.",)
)
