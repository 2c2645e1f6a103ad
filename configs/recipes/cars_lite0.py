"""EfficientNet-Lite0, trained as a whole in hours on two CPU cores: not the papers' network.

It starts from the ImageNet weights of the installed package. Crops have 128 pixels; 20 epochs
follow one of warm-up; rates are halved every four. Loss, optimizer, rates and batches are the
authors'.
"""

from configs.folder_baseline import BACKBONE

OVERRIDES = {
    "backbone": BACKBONE,
    "data.training_size": 128,
    "data.interpolation": "bicubic",  # as in the training of the weights
    "train.warmup_epochs": 1,
    "train.epochs": 20,
    "train.milestones": (),
    "train.period": 4,
    "train.checkpoint_every": 200,
    "evaluation.batch_size": 32,  # 256 at once would need gigabytes
}
