"""The authors' checkpoints: their network with a layer `embedding`."""

from dml_jax.backbones.weights.convert import Checkpoint, Head

CHECKPOINT = Checkpoint("HIST", (Head("embedding", "method/params/embedding"),))
