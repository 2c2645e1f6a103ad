"""What to change when the memory of a device does not suffice."""

from collections.abc import Iterator
from contextlib import contextmanager

import jax

from dml_jax.config import Config
from dml_jax.errors import ConfigError


@contextmanager
def explained(config: Config) -> Iterator[None]:
    """Within this context, too little memory for the training of a configuration is a ConfigError with the remedies."""
    try:
        yield
    except jax.errors.JaxRuntimeError as error:
        if "RESOURCE_EXHAUSTED" not in str(error):
            raise
        helpful = " or ".join([*remedies(config, jax.device_count()), "a smaller batch size"])
        raise ConfigError(
            f"data.batch_size={config.data.batch_size}: the training needs more memory than a device has; set {helpful}"
        ) from error


def remedies(config: Config, devices: int) -> list[str]:
    """The options that would lower the memory that a training step needs on each of some devices, cheapest first."""
    train, backbone = config.train, config.backbone
    freeze = "" if getattr(backbone, "freeze_bn", True) else " with backbone.freeze_bn=true"
    found = {
        "train.precision=bfloat16": train.precision == "float32",
        "backbone.remat=true": not backbone.remat,
        f"train.chunks={2 * train.chunks}{freeze}": config.data.batch_size % (2 * train.chunks * devices) == 0,
        "train.shard_classes=true (for many classes)": devices > 1 and not train.shard_classes,
    }
    return [remedy for remedy, helps in found.items() if helps]
