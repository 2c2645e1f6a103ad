"""The authors' checkpoints: a file of their ResNet, and one of their message passing network."""

import numpy as np

from dml_jax.backbones.weights.convert import (
    Checkpoint,
    Head,
    Rule,
    SecondNetwork,
    numbered,
    rename,
    to_jax_axes,
)
from dml_jax.backbones.weights.tensor_files import StateDict
from dml_jax.errors import WeightsError

RULES: tuple[Rule, ...] = (
    (r"^dim_red\.", "projection."),
    (r"^gnn_model\.node_model\.layers\.(\d+)\.", numbered("layer{}.")),
    (r"\.att\.q_linear", ".query"),
    (r"\.att\.k_linear", ".key_value@0"),
    (r"\.att\.v_linear", ".key_value@1"),
    (r"\.att\.out", ".output"),
    (r"\.linear(\d)", r".ff\1"),
    (r"^bottleneck\.0\.", "neck."),
    (r"^fc\.0\.", "classifier."),
)


def convert_network(file: StateDict, source: str) -> StateDict:
    """Arrays of the message passing network by path; runs that start from them check the shapes."""
    tensors = rename(file, RULES)
    if np.any(tensors.pop("neck.bias", 0) != 0):
        problem = "bottleneck.0.bias is not zero, but MPN does not train this bias"
        raise WeightsError(f"{source}: {problem}")
    converted = {}
    for name, tensor in tensors.items():
        if name.endswith("num_batches_tracked"):
            continue
        layer, _, leaf = name.replace(".", "/").rpartition("/")
        if leaf.startswith("running_"):
            converted[f"method/state/{layer}/{leaf.removeprefix('running_')}"] = tensor
            continue
        if leaf == "weight":
            leaf = "kernel" if tensor.ndim == 2 else "scale"
        converted[f"method/params/mpn/{layer}/{leaf}"] = to_jax_axes((leaf,), tensor)
    return converted


CHECKPOINT = Checkpoint(
    "MPN",
    (
        Head("red|embed", "method/params/embedding"),
        Head("fc", "method/params/auxiliary", on_features=False),
    ),
    network=SecondNetwork(
        "message passing network",
        "gnn_model.node_model.layers.0.att.q_linear.weight",
        convert_network,
    ),
)
