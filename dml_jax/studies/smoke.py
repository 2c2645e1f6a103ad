"""Shrinks any configuration so that it trains in seconds: the built-in digits, a small network, a few steps.

The method with its options, the loss, the sampler and the sizes of the batches stay, so that most of what a study
varies is executed.
"""

from dataclasses import asdict
from typing import Any

from dml_jax.backbones import resnet
from dml_jax.config import Data

STEPS = 4
LARGEST = {"embedding_dim": 128, "hidden_dim": 64, "psi_dim": 64, "queue_batches": 4, "clusters": 20}
CLUSTERS = 100  # of test-time batches
KEPT = ("sampler", "batch_size", "images_per_class", "jitter", "greyscale", "validation_share")


def shrunk(values: dict[str, Any]) -> dict[str, Any]:
    """A small version of a resolved configuration, a nested dict."""
    data = asdict(Data()) | {key: values["data"][key] for key in KEPT}
    backbone = resnet.Config(block="basic", depths=(1, 1), widths=(8, 16), stem="small")
    method = {key: min(value, LARGEST[key]) if key in LARGEST else value for key, value in values["method"].items()}
    if method["name"] == "crt":
        method["embedding_dims"] = tuple(min(dim, 64) for dim in method["embedding_dims"])
    if method["name"] == "group_loss" and not method["embedding_dim"]:
        method["embedding_dim"] = 64
    train = values["train"] | {
        "steps": STEPS, "epochs": 0, "warmup_epochs": 0, "schedule": "constant", "reload_best_epochs": (),
        "log_every": 1, "evaluate_every": STEPS // 2, "checkpoint_every": STEPS,
    }  # fmt: skip
    evaluation = values["evaluation"] | {"controls": False, "refine_clusters": CLUSTERS}
    return values | {
        "data": data, "backbone": asdict(backbone), "method": method, "train": train, "evaluation": evaluation,
        "paper": {}, "init_from": "",
    }  # fmt: skip
