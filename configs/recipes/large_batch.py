"""Batches that fill 8 or 16 devices: the variants `devices8` and `devices16`, which are in no
paper.

With the papers' batches, each of many devices has a few images per step and mostly waits for
gradients. Here each has 60 or 64, in bfloat16. All learning rates grow with the square root of the
batch, which keeps the noise of Adam's updates (Malladi et al., NeurIPS 2022), and rise linearly in
the first 200 steps. A larger batch also has more classes, and more negatives for each image.
"""

from configs.base import Variants


def variants(own: int, per_device: int) -> Variants:
    """The overrides of a configuration by name; `own`: its batch size, for which its learning rates
    are given."""
    return {
        f"devices{devices}": {
            "data.batch_size": per_device * devices,
            "train.scale_rates": "sqrt",
            "train.rates_for_batch": own,
            "train.linear_warmup": 200,
            "train.precision": "bfloat16",
        }
        for devices in (8, 16)
    }
