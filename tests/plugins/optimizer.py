"""An optimizer: Lion (Chen et al., 2023), from optax."""

import optax


def lion(weight_decay):
    """The direction of an update, before the learning rate."""
    return optax.chain(optax.scale_by_lion(), optax.add_decayed_weights(weight_decay))
