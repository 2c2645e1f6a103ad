"""What to change when the memory of a device does not suffice."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import jax

from dml_jax.backbones.contract import optional
from dml_jax.config import Config
from dml_jax.errors import ConfigError
from dml_jax.train.variants import class_tables


def of_training(config: Config) -> AbstractContextManager[None]:
    """Within this context, too little memory for the training of a configuration is a ConfigError with the remedies."""
    helpful = " or ".join([*remedies(config, jax.device_count()), "a smaller batch size"])
    return _explained(f"data.batch_size={config.data.batch_size}: the training", helpful)


def of_evaluation(config: Config) -> AbstractContextManager[None]:
    """Within this context, too little memory for an evaluation is a ConfigError with the remedy."""
    return _explained(f"evaluation.batch_size={config.evaluation.batch_size}: the evaluation", "a smaller one")


@contextmanager
def _explained(what: str, helpful: str) -> Iterator[None]:
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        raise ConfigError(f"{what} needs more memory than a device has; set {helpful}") from error


def remedies(config: Config, devices: int) -> list[str]:
    """The options that would lower the memory that a training step needs on each of some devices, cheapest first."""
    train, backbone = config.train, optional(config.backbone)
    shared = devices > 1 and class_tables.MULTIPLE % devices == 0
    freeze = " with backbone.freeze_bn=true" if backbone.freeze_bn is False else ""
    found = {
        "train.precision=bfloat16": train.precision == backbone.dtype == "float32",
        "backbone.remat=true": backbone.remat is False,
        f"train.chunks={2 * train.chunks}{freeze}": config.data.batch_size % (2 * train.chunks * devices) == 0,
        "train.shard_classes=true (for many classes)": shared and not train.shard_classes,
    }
    return [remedy for remedy, helps in found.items() if helps]
