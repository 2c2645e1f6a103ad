"""Options of the training."""

from typing import Annotated, Literal

from annotated_types import Gt, Le

from dml_jax.options.backbones import Dtype
from dml_jax.options.fields import Fraction, NonNegative, NonNegativeInt, PositiveInt, require, section

Optimizer = Literal["adam", "adamw", "radam", "sgd", "rmsprop", "lion", "muon"]
# The optimizers that use an option.
USERS = {
    "momentum": ("sgd", "rmsprop"), "nesterov": ("sgd",), "alpha": ("rmsprop",),
    "betas": ("adam", "adamw", "radam", "lion"),
}  # fmt: skip


@section
class Group:
    """How one parameter group is trained."""

    learning_rate: NonNegative  # before the schedule
    weight_decay: NonNegative = 0.0  # decoupled in AdamW, RAdam, Lion and Muon, else added to the gradient
    warmup: Literal["train", "freeze"] = "train"  # whether the group is trained in the warm-up epochs
    freeze: bool = False  # never trained; its batch statistics stay as they are, too, and a backbone normalises by them


@section
class Train:
    """Length, optimizer and schedule of the training."""

    groups: dict[str, Group]  # by name; the method determines the names
    steps: NonNegativeInt = 0  # length in steps
    epochs: NonNegativeInt = 0  # or length in epochs, counted as in the method's paper
    warmup_epochs: NonNegativeInt = 0  # before these epochs, at the full learning rate
    linear_warmup: NonNegativeInt = 0  # steps in which all learning rates rise linearly from zero
    # Trains on features of the frozen backbone, computed once for this many views of each training image: that of the
    # evaluation, then random crops. 0: trains on images.
    feature_views: NonNegativeInt = 0
    chunks: PositiveInt = 1  # parts in which a batch is encoded, for batches larger than the memory; same results
    precision: Dtype = "float32"  # of the backbone's activations and of the operands of the heads' products
    shard_classes: bool = False  # spread tables of classes (proxies, classifiers) over the devices; same results
    optimizer: Optimizer = "adam"  # with PyTorch's conventions and defaults
    momentum: Fraction = 0.0  # of sgd and rmsprop
    nesterov: bool = False  # Nesterov's momentum, of sgd
    alpha: Fraction = 0.99  # decay of rmsprop's mean of squared gradients
    betas: tuple[Fraction, ...] = ()  # of adam, adamw, radam (default 0.9, 0.999) and lion (0.9, 0.99)
    clip_norm: NonNegative = 0.0  # largest global norm of the gradient of all groups without `freeze`; 0: no limit
    ema: Fraction = 0.0  # decay per step of a moving average of the model, which is the one evaluated; 0: none
    schedule: Literal["constant", "cosine", "step"] = "constant"  # of all learning rates
    milestones: tuple[NonNegativeInt, ...] = ()  # epochs after which "step" multiplies by gamma; warm-up not counted
    gamma: Annotated[float, Gt(0), Le(1)] = 0.1  # factor of the learning rates at a milestone
    layer_decay: Annotated[float, Gt(0), Le(1)] = 1.0  # ratio of the rates of a vision transformer's block and the next
    log_every: PositiveInt = 20  # steps between two lines of metrics.jsonl
    evaluate_every: NonNegativeInt = 0  # steps between two evaluations; 0: after each epoch if the length is in epochs
    checkpoint_every: PositiveInt = 200  # steps between two checkpoints
    keep_every: NonNegativeInt = 0  # steps between two models kept for `dml_jax.analyse`; 0: none
    select: Literal["last", "validation", "test"] = "last"  # how the reported model is selected
    patience: NonNegativeInt = 0  # evaluations without a better model until training stops early; 0: never
    reload_best_epochs: tuple[NonNegativeInt, ...] = ()  # epochs (without warm-up) that restart from the best model

    def __post_init__(self) -> None:
        rule = f"give a positive number of steps or of epochs (={self.epochs}), not both"
        require((self.steps > 0) != (self.epochs > 0), "steps", self.steps, rule)
        increasing = list(self.milestones) == sorted(set(self.milestones))
        require(increasing, "milestones", self.milestones, "must be increasing")
        if self.schedule != "step":
            rule = f"schedule={self.schedule!r} does not use it; remove it, or set schedule='step'"
            require(not self.milestones, "milestones", self.milestones, rule)
            require(self.gamma == Train.gamma, "gamma", self.gamma, rule)
        for key, users in USERS.items():
            value, default = getattr(self, key), getattr(Train, key)
            rule = f"optimizer={self.optimizer!r} does not use it; remove it, or choose {' or '.join(users)}"
            require(value == default or self.optimizer in users, key, value, rule)
        require(not self.nesterov or self.momentum > 0, "nesterov", self.nesterov, "needs a positive momentum")
        require(len(self.betas) in (0, 2), "betas", self.betas, "give two numbers, or none for the default")
        rule = "needs select='validation'; early stopping on test images would select by them"
        require(not self.patience or self.select == "validation", "patience", self.patience, rule)
        rule = "needs evaluations before the end; with train.steps, set evaluate_every"
        require(not (self.patience and self.steps) or self.evaluate_every > 0, "patience", self.patience, rule)
        rule = "needs a best model; set select to validation or test"
        require(
            not self.reload_best_epochs or self.select != "last", "reload_best_epochs", self.reload_best_epochs, rule
        )
