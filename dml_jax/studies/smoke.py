"""Shrinks any configuration so that it trains in seconds: the built-in digits, a small network, a few steps.

The method with its options, the loss, the sampler and the sizes of the batches stay, so that most of what a study
varies is executed.
"""

from dataclasses import fields, replace
from typing import Any

from dml_jax.backbones import resnet
from dml_jax.config import Config, Data, settled

STEPS = 4
LARGEST = {"embedding_dim": 128, "hidden_dim": 64, "psi_dim": 64, "queue_batches": 4}
CLUSTERS = 100  # of test-time batches
KEPT = ("sampler", "batch_size", "images_per_class", "jitter", "greyscale", "validation_share")


def shrunk(config: Config) -> Config:
    """The same configuration, small."""
    kept: dict[str, Any] = {key: getattr(config.data, key) for key in KEPT}
    method = config.method
    sizes: dict[str, Any] = {
        field.name: min(getattr(method, field.name), LARGEST[field.name])
        for field in fields(method)
        if field.name in LARGEST
    }
    if method.name == "crt":
        sizes["embedding_dims"] = tuple(min(dim, 64) for dim in method.embedding_dims)
    if method.name == "group_loss" and not method.embedding_dim:
        sizes["embedding_dim"] = 64
    train = replace(
        config.train, steps=STEPS, epochs=0, warmup_epochs=0, schedule="constant", reload_best_epochs=(), log_every=1,
        evaluate_every=STEPS // 2, checkpoint_every=STEPS,
    )  # fmt: skip
    small = replace(
        config, data=Data(**kept),
        backbone=resnet.Config(block="basic", depths=(1, 1), widths=(8, 16), stem="small"),
        method=replace(method, **sizes), train=train,
        evaluation=replace(config.evaluation, controls=False, refine_clusters=CLUSTERS), paper={}, init_from="",
    )  # fmt: skip
    return settled(small)
