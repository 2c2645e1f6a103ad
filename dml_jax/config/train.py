"""Options of the training."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Gt, Le

from dml_jax.config.fields import Dtype, Fraction, NonNegative, NonNegativeInt, PositiveInt, require, section
from dml_jax.config.needs import Needs, Run, RunRule

Optimizer = Literal["adam", "adamw", "radam", "sgd", "rmsprop"]
WITH_MOMENTUM = Needs("train.optimizer='sgd' or 'rmsprop'", lambda c: c.train.optimizer in ("sgd", "rmsprop"))
RMSPROP = Needs("train.optimizer='rmsprop'", lambda c: c.train.optimizer == "rmsprop")
LATE = Needs("train.warmup_epochs", lambda c: c.train.warmup_epochs)
STEPPED = Needs("train.schedule='step'", lambda c: c.train.schedule == "step")
WITH_MILESTONES = Needs("train.milestones", lambda c: c.train.schedule != "step" or c.train.milestones)
WITH_BLOCKS = Needs(
    "a vision transformer as the backbone", lambda c: c.backbone.name in ("vit", "deit", "dinov3", "siglip")
)
SELECTED = Needs("a best model, of train.select='validation' or 'test'", lambda c: c.train.select != "last")
BEFORE_END = "no evaluation precedes the last step; set train.evaluate_every, or train for longer"
TOO_LATE = "goes beyond the last step; lower it, or train for longer"


def _reloads(config: Any, run: Run) -> bool:
    """Whether every reload follows an evaluation and precedes the last step."""
    ends = [run.epoch_end(epoch) for epoch in config.train.reload_best_epochs]
    return all(0 < run.first_evaluation <= end < run.steps for end in ends)


@section
class Group:
    """How one parameter group is trained."""

    learning_rate: NonNegative  # before the schedule
    weight_decay: NonNegative = 0.0  # decoupled in AdamW and RAdam, else added to the gradient
    # Whether the group is trained in the warm-up epochs.
    warmup: Annotated[Literal["train", "freeze"], LATE] = "train"
    # Never trained; its batch statistics stay as they are, too, and a backbone normalises by them.
    freeze: bool = False
    # Rank of the updates of the group's matrices that are trained instead of its parameters (LoRA); 0: no updates.
    rank: NonNegativeInt = 0
    alpha: NonNegative = 0.0  # the updates are multiplied by alpha / rank; 0: by 1

    def __post_init__(self) -> None:
        require(not (self.freeze and self.rank), "rank", self.rank, "a frozen group has no updates; set freeze=false")
        require(self.rank > 0 or not self.alpha, "alpha", self.alpha, "needs a rank")


def backbone_is_frozen(groups: Mapping[str, Group]) -> bool:
    """Whether no part of the backbone, or of DiVA's group "model", is trained."""
    parts = [group for name, group in groups.items() if name.split("/")[0] in ("backbone", "model")]
    return bool(parts) and all(group.freeze for group in parts)


@section
class Train:
    """Length, optimizer and schedule of the training."""

    KEY: ClassVar = "train"

    # By name, which the method determines, or by path: "backbone/layer1_*" takes what it fits out of other groups.
    groups: dict[str, Group]
    steps: NonNegativeInt = 0  # length in steps
    epochs: NonNegativeInt = 0  # or length in epochs, counted as in the method's paper
    warmup_epochs: NonNegativeInt = 0  # before these epochs, at the full learning rate
    # Steps in which all learning rates rise linearly from zero.
    linear_warmup: Annotated[NonNegativeInt, RunRule(TOO_LATE, lambda c, run: c.train.linear_warmup <= run.steps)] = 0
    # Trains on features of the frozen backbone, computed once for this many views of each training image: the
    # evaluation's crop, then random crops. 0: trains on images.
    feature_views: NonNegativeInt = 0
    chunks: PositiveInt = 1  # parts in which a batch is encoded, for batches larger than the memory; same results
    precision: Dtype = "float32"  # of the backbone's activations and of the operands of the heads' products
    # Spread tables of classes (proxies, classifiers) over the devices; same results.
    shard_classes: Annotated[
        bool,
        RunRule(
            "the method has no tables of classes; set it to false",
            lambda c, run: not c.train.shard_classes or run.tables,
        ),
    ] = False
    optimizer: Optimizer = "adam"  # with PyTorch's conventions and defaults
    momentum: Annotated[Fraction, WITH_MOMENTUM] = 0.0  # of sgd and rmsprop
    alpha: Annotated[Fraction, RMSPROP] = 0.99  # decay of rmsprop's mean of squared gradients
    clip_norm: NonNegative = 0.0  # largest global norm of the gradient of all groups without `freeze`; 0: no limit
    ema: Fraction = 0.0  # decay per step of a moving average of the model, which is the one evaluated; 0: none
    schedule: Annotated[Literal["constant", "cosine", "step"], WITH_MILESTONES] = "constant"  # of all learning rates
    # Epochs after which "step" multiplies by gamma; warm-up not counted.
    milestones: Annotated[
        tuple[NonNegativeInt, ...],
        STEPPED,
        RunRule(TOO_LATE, lambda c, run: all(run.epoch_end(epoch) < run.steps for epoch in c.train.milestones)),
    ] = ()
    gamma: Annotated[float, Gt(0), Le(1), STEPPED] = 0.1  # factor of the learning rates at a milestone
    # Ratio of the rates of a vision transformer's block and the next.
    layer_decay: Annotated[float, Gt(0), Le(1), WITH_BLOCKS] = 1.0
    log_every: PositiveInt = 20  # steps between two lines of metrics.jsonl
    evaluate_every: NonNegativeInt = 0  # steps between two evaluations; 0: after each epoch if the length is in epochs
    checkpoint_every: PositiveInt = 200  # steps between two checkpoints
    # Steps between two models kept for `dml-jax analyse`; 0: none.
    keep_every: Annotated[NonNegativeInt, RunRule(TOO_LATE, lambda c, run: c.train.keep_every <= run.steps)] = 0
    # How the reported model is selected.
    select: Annotated[
        Literal["last", "validation", "test"],
        RunRule(BEFORE_END, lambda c, run: c.train.select == "last" or run.first_evaluation),
    ] = "last"
    # Epochs (without warm-up) that restart from the best model.
    reload_best_epochs: Annotated[
        tuple[NonNegativeInt, ...],
        SELECTED,
        RunRule("one precedes every evaluation, or goes beyond the last step; remove it", _reloads),
    ] = ()

    def __post_init__(self) -> None:
        rule = f"give a positive number of steps or of epochs (={self.epochs}), not both"
        require((self.steps > 0) != (self.epochs > 0), "steps", self.steps, rule)
        increasing = list(self.milestones) == sorted(set(self.milestones))
        require(increasing, "milestones", self.milestones, "must be increasing")
