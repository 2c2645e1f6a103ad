"""The authors' checkpoints: `last_linear` has a layer per task; blocks have two names."""

from dml_jax.backbones.weights.convert import Checkpoint, Head

CHECKPOINT = Checkpoint(
    "DiVA", (Head(r"last_linear\.(\w+)", r"method/params/heads/\1"),), repeated=("layer_blocks.",)
)
