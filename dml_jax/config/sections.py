"""Sections that every configuration has: data, training and evaluation."""

import dataclasses
from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt, Le, Lt
from pydantic import AfterValidator

from dml_jax.config.fields import (
    LIMIT,
    AtLeastTwo,
    Effect,
    Fraction,
    Mark,
    Named,
    NonEmpty,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveInt,
    Probability,
    Rules,
    require,
    section,
)  # fmt: skip

SAMPLERS = (
    "balanced",
    "shuffled",
    "chunks",
    "redrawn_chunks",
    "distinct_classes",
    "distinct_chunks",
    "with_replacement",
    "related",
)
Sampler = Annotated[str, AfterValidator(Named(SAMPLERS))]
ImportPath = Annotated[str, AfterValidator(Named(()))]
Crop = Literal["none", "random_resized", "random", "centre"]
WITHOUT_CLASSES = ("shuffled", "redrawn_chunks")  # samplers that do not draw images by class
ANY_SIZE = "a convolutional backbone, because others have positions for one image size"
Optimizer = Annotated[str, AfterValidator(Named(("adam", "adamw", "radam", "sgd")))]
Schedule = Annotated[str, AfterValidator(Named(("constant", "cosine", "step")))]
Refine = Annotated[str, AfterValidator(Named(None))]


def backbone_is_frozen(config: Any) -> bool:
    """Whether no part of the backbone is trained."""
    groups = config.train.groups.items()
    parts = [group for name, group in groups if name.split("/")[0] == "backbone"]
    return bool(parts) and all(group.freeze for group in parts)


@section
class Data:
    """Which images are used, and how they become batches.

    Attributes:
      name: Kind of the data set: a module of dml_jax/data/formats, or an import path.
      path: Directory of a prepared data set or of a folder of images; empty for built-in data sets.
      split: Which classes are trained on: "classes" keeps the test classes out; "all" trains on
        every class, for deployment.
      class_split: Seed for assigning the classes of both splits at random to training and test,
        with the numbers of classes unchanged; 0 keeps the data set's own split. Use different seeds
        to replicate an experiment.
      session: How to group photographs taken together, which are never compared with each other:
        by "date" (from EXIF), "folder", the name of a column, or a regular expression on file
        names. Empty: compare all.
      splits: Which folders or column values at an unprepared data.path are splits; see --splits of
        `dml-jax prepare`.
      classes: Which of the nested folders at an unprepared data.path is the class.
      relation: Import path of a function (names [N], names [M]) -> [N, M] that returns how closely
        two lists of classes are related, e.g. by shared tags or in a hierarchy. Empty: classes are
        equal or not.
      sampler: How batches are drawn; see dml_jax/data/samplers.
      batch_size: Images per step, over all devices.
      images_per_class: Images per class in a batch, and in batches of test-time refinement.
      crop: How training images are cropped; evaluation uses the centre crop.
      image_size: Side of the crop in pixels.
      training_size: Side of the training crop in pixels, for convolutional networks; 0: as
        `image_size`. Smaller crops are faster, and make objects in a random part of an image appear
        as large as in evaluation.
      resize: Length in pixels to which the shorter side is resized before "random" and "centre"
        crops, and before the crop of the evaluation.
      interpolation: Filter used for all resizing.
      resize_first: Also resizes to `resize` before "random_resized" crops.
      exif_rotation: Rotates photographs according to their EXIF orientation, which the papers'
        authors do not.
      crop_scale: Smallest and largest fraction of the image's area in "random_resized" crops.
      crop_ratio: Smallest and largest width / height of "random_resized" crops.
      flip: Probability that a training image is flipped horizontally.
      jitter: Largest relative change of brightness, contrast and saturation.
      greyscale: Probability that a training image is converted to greyscale.
      erasing: Probability that a random box of a training image is erased after normalisation
        (MPN).
      validation_share: Fraction of the training classes held out for validation if the data set has
        no validation split.
      workers: Number of processes that read batches ahead; 0 uses only threads. -1: for photographs
        on GPUs or TPUs, one less than the cores available to the process, at most 16 per device,
        but none if that is fewer than 4 per device or /dev/shm has less than 1 GiB.
      threads: Number of threads that read batches ahead; 0: one per core available to the process,
        at most 8, or one per process of `data.workers`.
    """

    KEY: ClassVar = "data"

    name: str = "digits"
    path: Annotated[str, Mark.PATH, Effect.NONE, Mark.SAME_EXPERIMENT] = ""
    split: Literal["classes", "all"] = "classes"
    class_split: NonNegativeInt = 0
    session: str = ""
    splits: str = "auto"
    classes: Literal["auto", "leaf", "top", "path"] = "auto"
    relation: Annotated[str, AfterValidator(Named(("",))), Mark.BY_PATH] = ""
    sampler: Sampler = "balanced"
    batch_size: AtLeastTwo = 64
    images_per_class: PositiveInt = 4
    crop: Crop = "none"
    image_size: NonNegativeInt = 0
    training_size: NonNegativeInt = 0
    resize: NonNegativeInt = 0
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"
    resize_first: bool = False
    exif_rotation: bool = True
    crop_scale: tuple[Positive, Positive] = (0.08, 1.0)
    crop_ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3)
    flip: Probability = 0.0
    jitter: Annotated[float, Ge(0), Lt(1)] = 0.0
    greyscale: Probability = 0.0
    erasing: Probability = 0.0
    validation_share: Fraction = 0.0
    workers: Annotated[int, Ge(-1), Lt(LIMIT), Effect.NONE, Mark.SAME_EXPERIMENT] = -1
    threads: Annotated[NonNegativeInt, Effect.NONE, Mark.SAME_EXPERIMENT] = 0

    def __post_init__(self) -> None:
        if self.sampler not in WITHOUT_CLASSES:
            size, images = self.batch_size, self.images_per_class
            rule = f"must divide data.batch_size={size}"
            require(size % images == 0, "images_per_class", images, rule)
            problem = f"a batch would have only one class (data.images_per_class={images})"
            require(size > images, "batch_size", size, f"{problem}; losses need two or more")
        if self.crop != "none":
            rule = f"crop={self.crop!r} needs a size"
            require(self.image_size > 0, "image_size", self.image_size, rule)
            rule = f"must be at least image_size={self.image_size}"
            require(self.resize >= self.image_size, "resize", self.resize, rule)
        if self.crop == "random":
            rule = f"must not exceed resize={self.resize}, the side that crop='random' crops"
            require(self.training_size <= self.resize, "training_size", self.training_size, rule)
        for key in ("crop_scale", "crop_ratio"):
            low, high = getattr(self, key)
            require(low <= high, key, (low, high), "must be increasing")
        require(self.crop_scale[1] <= 1, "crop_scale", self.crop_scale, "must not exceed 1")

    def inert(self, config: Any) -> Rules:
        """What options need; see `fields.inert`."""
        by_class = self.sampler not in WITHOUT_CLASSES or config.evaluation.refine
        any_size = not getattr(config.backbone, "fixed_size", False)
        cropped = self.crop != "none"
        return (
            (
                self.name != "digits",
                "a data.name other than digits",
                *("path", "session", "splits", "classes", "exif_rotation"),
            ),
            (
                config.train.select in ("last", "folds"),
                "train.select='last' or 'folds', because no test class is unseen",
                "split",
            ),
            (self.split == "classes", "data.split='classes'", "class_split"),
            (config.evaluation.protocol == "clean", "evaluation.protocol='clean'", "session"),
            (
                by_class,
                f"evaluation.refine or a data.sampler other than {', '.join(WITHOUT_CLASSES)}",
                "images_per_class",
            ),
            (cropped, "a data.crop", "image_size", "training_size", "resize", "interpolation"),
            (
                self.crop == "random_resized",
                "data.crop='random_resized'",
                *("resize_first", "crop_scale", "crop_ratio"),
            ),
            (any_size, ANY_SIZE, "training_size"),
            (  # features are computed from crops of the evaluation's size, flipped at random
                not config.train.feature_views,
                "train.feature_views=0",
                *("training_size", "jitter", "greyscale", "erasing"),
            ),
        )

    @property
    def training_side(self) -> int:
        """Side of the crop in training, in pixels."""
        return self.training_size or self.image_size

    @property
    def tested(self) -> str:
        """Which classes the final results are measured on."""
        return "training classes" if self.split == "all" else "unseen classes"


@section
class Group:
    """How one parameter group is trained.

    Attributes:
      learning_rate: Learning rate before the schedule is applied.
      weight_decay: Weight decay: decoupled in AdamW and RAdam, otherwise added to the gradient.
      warmup: Whether the group is trained ("train") or kept unchanged ("freeze") in the warm-up
        epochs.
      freeze: Never trains the group. A frozen backbone also normalises with its stored batch
        statistics.
    """

    learning_rate: NonNegative
    weight_decay: NonNegative = 0.0
    warmup: Literal["train", "freeze"] = "train"
    freeze: bool = False

    def inert(self, config: Any) -> Rules:
        """What options need; see `fields.inert`."""
        return ((config.train.warmup_epochs, "train.warmup_epochs", "warmup"),)

    def doubtful(self, config: Any) -> Rules:
        """Learning rate and weight decay of a frozen group; see `fields.doubtful`."""
        groups = config.train.groups
        name = next(name for name, group in groups.items() if group is self)
        # A part of a group starts as a copy of the group, including its rates.
        copied = groups.get(name.partition("/")[0]) == dataclasses.replace(self, freeze=False)
        problem = "has no effect because the group is frozen; set it to 0, or freeze=false"
        return tuple(
            (not (self.freeze and getattr(self, name)) or copied, problem, name)
            for name in ("learning_rate", "weight_decay")
        )


@section
class Train:
    """Length, optimizer and schedule of the training.

    Attributes:
      groups: Learning rates and other options of the method's parameter groups, by name; a path
        such as "backbone/layer1_*" takes precedence.
      steps: Length in steps; 0 if `epochs` is set.
      minutes: Length in minutes of training, instead of `steps`: the first steps are timed, and
        `config.json` records the number of steps for resumed runs; 0: use `steps`.
      epochs: Length in epochs, counted as in the method's paper; 0 if `steps` is set.
      warmup_epochs: Additional epochs at the start, at the full learning rate, in which groups may
        be frozen.
      linear_warmup: Number of steps in which all learning rates rise linearly from zero.
      feature_views: Trains on features of the frozen backbone, computed once for this number of
        views per training image: the evaluation's crop, then random crops. 0 trains on images.
      features: Directory for these features; empty: `features` next to the work directory.
      chunks: Number of chunks in which each batch is encoded, to save memory; results are
        unchanged.
      precision: Precision of the backbone and of products in the heads; losses and the optimizer
        always use float32.
      optimizer: Optimizer, with PyTorch's conventions and defaults, or an import path.
      momentum: Momentum of SGD.
      scale_rates: Multiplies learning rates by data.batch_size / rates_for_batch ("linear"), or by
        its square root ("sqrt").
      rates_for_batch: Batch size to which the learning rates refer; 0: the batch size in the
        configuration file.
      schedule: Schedule of all learning rates, or an import path.
      period: With the schedule "step", multiplies learning rates by `gamma` whenever this number
        of epochs has passed, without warm-up; 0: use `milestones`.
      milestones: Epochs, without warm-up, after which learning rates are multiplied by `gamma`;
        instead of `period`.
      gamma: Factor of the learning rates after each period or milestone.
      layer_decay: Learning rate of a vision transformer's block divided by that of the next block;
        1: all blocks have the same rate.
      log_every: Steps between two lines of metrics.jsonl.
      evaluate_every: Steps between two evaluations; 0: after each epoch if the length is in epochs,
        otherwise only at the end.
      checkpoint_every: Steps between two checkpoints.
      keep_every: Steps between two checkpoints that are kept for analyses; 0: none.
      select: Which model is reported: the "last"; the best evaluated on the "validation" or "test"
        classes; or the best on "folds" of the training classes, among published weights, the
        closed-form layer, the trained network and the mean of the latter two.
      reload_best_epochs: Epochs, without warm-up, at the start of which training returns to the
        best model so far.
    """

    KEY: ClassVar = "train"

    groups: dict[str, Group]
    steps: NonNegativeInt = 0
    minutes: NonNegative = 0.0
    epochs: NonNegativeInt = 0
    warmup_epochs: NonNegativeInt = 0
    linear_warmup: NonNegativeInt = 0
    feature_views: NonNegativeInt = 0
    features: Annotated[str, Mark.PATH, Effect.NONE, Mark.SAME_EXPERIMENT] = ""
    chunks: PositiveInt = 1
    precision: Literal["float32", "tensorfloat32", "bfloat16"] = "float32"
    optimizer: Optimizer = "adam"
    momentum: Fraction = 0.0
    scale_rates: Literal["none", "linear", "sqrt"] = "none"
    rates_for_batch: NonNegativeInt = 0
    schedule: Schedule = "constant"
    period: NonNegativeInt = 0
    milestones: tuple[NonNegativeInt, ...] = ()
    gamma: Annotated[float, Gt(0), Le(1)] = 0.1
    layer_decay: Annotated[float, Gt(0), Le(1)] = 1.0
    log_every: Annotated[PositiveInt, Effect.NONE, Mark.SAME_EXPERIMENT] = 20
    evaluate_every: Annotated[NonNegativeInt, Effect.SELECTION] = 0
    checkpoint_every: Annotated[PositiveInt, Effect.NONE, Mark.SAME_EXPERIMENT] = 200
    keep_every: Annotated[NonNegativeInt, Effect.NONE, Mark.SAME_EXPERIMENT] = 0
    select: Literal["last", "validation", "test", "folds"] = "last"
    reload_best_epochs: tuple[NonNegativeInt, ...] = ()

    def __post_init__(self) -> None:
        rule = f"give a positive number of steps or of epochs (={self.epochs}), not both"
        require((self.steps > 0) != (self.epochs > 0), "steps", self.steps, rule)
        rule = f"replaces a length in steps; set train.epochs=0 (={self.epochs})"
        require(not (self.minutes and self.epochs), "minutes", self.minutes, rule)
        rule = "does not support train.feature_views; give train.steps instead"
        require(not (self.minutes and self.feature_views), "minutes", self.minutes, rule)
        rule = (
            f"scale_rates={self.scale_rates!r} needs the batch size to which learning rates refer"
        )
        require(self.scale_rates == "none" or self.rates_for_batch > 0, "rates_for_batch", 0, rule)
        increasing = list(self.milestones) == sorted(set(self.milestones))
        require(increasing, "milestones", self.milestones, "must be increasing")
        rule = f"give milestones or a period (={self.period}), not both"
        require(not (self.milestones and self.period), "milestones", self.milestones, rule)

    def inert(self, config: Any) -> Rules:
        """What options need; see `fields.inert`."""
        steps = self.schedule == "step"
        blocks = hasattr(config.backbone, "layer") and not backbone_is_frozen(config)
        return (
            (self.feature_views, "train.feature_views", "features"),
            (self.optimizer == "sgd", "train.optimizer='sgd'", "momentum"),
            (self.scale_rates != "none", "train.scale_rates='linear' or 'sqrt'", "rates_for_batch"),
            (steps, "train.schedule='step'", "period", "milestones", "gamma"),
            (
                not steps or self.period or self.milestones,
                "train.period or train.milestones",
                *("schedule", "gamma"),
            ),
            (blocks, "a vision transformer that is trained as the backbone", "layer_decay"),
            (self.selects_steps, "train.select='validation' or 'test'", "reload_best_epochs"),
        )

    def doubtful(self, config: Any) -> Rules:
        """Learning rate changes after the last epoch; see `fields.doubtful`."""
        late = "takes effect only after training has ended"
        problem = f"{late}; give less than train.epochs={self.epochs}, or train longer"
        reached = self.schedule != "step" or not self.epochs
        return (
            (reached or max(self.milestones, default=0) < self.epochs, problem, "milestones"),
            (reached or self.period < self.epochs, problem, "period"),
        )

    @property
    def selects_steps(self) -> bool:
        """Whether models are evaluated during training and the best is reported."""
        return self.select in ("validation", "test")


BEST = "best"  # instead of the name of a test-time variant
TestVariants = dict[str, dict[str, Any]]


@section
class Evaluation:
    """How embeddings are evaluated.

    Attributes:
      protocol: How the query is excluded from its neighbours: by its index ("clean"), or by
        omitting the first neighbour as the papers' authors do ("paper").
      ks: The values of K for Recall@K; must contain 1.
      lone_queries: Whether a query whose class has no other image counts as a "miss" in Recall@K
        and MRR, or is left out ("omit").
      batch_size: Number of images embedded at a time.
      cluster: Computes NMI with k-means at the end; slow with many thousand classes.
      nmi_average: Mean of the two entropies in NMI; HIST's code uses the geometric mean.
      kmeans_init: How k-means starts. "auto": up to 1,000 classes, k-means++ with the best of 10
        starts of at most 300 iterations; for more classes, one start from random rows with at most
        20 iterations.
      kmeans_restarts: Number of starts of k-means; 0: as "auto".
      kmeans_iterations: Largest number of iterations per start; 0: as "auto".
      refine: Also evaluates these test-time refinements of the method (MPN has some), or functions
        with these import paths.
      metrics: Import paths of functions of a query's ranking; their means over all queries are also
        reported.
      test_variants: Test-time variants of the model to evaluate: for each name, the method's
        options that it changes, e.g. DiVA's weights of the embeddings.
      test_variant: The variant that is reported and selects models; "best": the variant with the
        highest Recall@1.
      controls: Also evaluates raw pixels, a colour histogram and the network before training.
      diagnose: Measures at the end whether the method's mechanism has any effect, if the method
        defines such a measurement.
    """

    KEY: ClassVar = "evaluation"

    protocol: Annotated[Literal["clean", "paper"], Effect.SELECTION] = "clean"
    ks: Annotated[tuple[PositiveInt, ...], NonEmpty, Mark.SAME_EXPERIMENT] = (1, 2, 4, 8)
    lone_queries: Literal["miss", "omit"] = "miss"
    batch_size: Annotated[PositiveInt, Mark.SAME_EXPERIMENT] = 256
    cluster: bool = True
    nmi_average: Literal["arithmetic", "geometric"] = "arithmetic"
    kmeans_init: Literal["auto", "k-means++", "random"] = "auto"
    kmeans_restarts: NonNegativeInt = 0
    kmeans_iterations: NonNegativeInt = 0
    refine: Annotated[tuple[Refine, ...], Mark.SAME_EXPERIMENT] = ()
    metrics: Annotated[tuple[ImportPath, ...], Mark.SAME_EXPERIMENT] = ()
    test_variants: Annotated[TestVariants, Effect.EMBEDDING, Mark.SAME_EXPERIMENT] = field(
        default_factory=dict
    )
    test_variant: Annotated[str, Effect.EMBEDDING, Mark.SAME_EXPERIMENT] = BEST
    controls: Annotated[bool, Mark.SAME_EXPERIMENT] = False
    diagnose: Annotated[bool, Mark.SAME_EXPERIMENT] = False

    def __post_init__(self) -> None:
        rule = "must contain 1: models are selected and reported by Recall@1"
        require(1 in self.ks, "ks", self.ks, rule)
        test_variants, valid = self.test_variants, (BEST, *self.test_variants)
        rule = f"must not use the name {BEST!r}"
        require(BEST not in test_variants, "test_variants", test_variants, rule)
        rule = f"must be one of {', '.join(valid)}"
        require(self.test_variant in valid, "test_variant", self.test_variant, rule)
        distinct = len(set(self.refine)) == len(self.refine)
        require(distinct, "refine", self.refine, "must not contain a name twice")
        names = {path.rpartition(".")[2] for path in self.metrics}
        rule = "must not contain two functions with the same name, which names their results"
        require(len(names) == len(self.metrics), "metrics", self.metrics, rule)

    def inert(self, config: Any) -> Rules:
        """What options need; see `fields.inert`."""
        clusters = ("nmi_average", "kmeans_init", "kmeans_restarts", "kmeans_iterations")
        return (
            (self.cluster, "evaluation.cluster", *clusters),
            (self.test_variants, "evaluation.test_variants", "test_variant"),
        )

    @property
    def clustering(self) -> dict[str, Any]:
        """Arguments of `kmeans.fit`, without those that depend on the number of classes."""
        options: dict[str, Any] = {"init": self.kmeans_init, "restarts": self.kmeans_restarts}
        options["max_iterations"] = self.kmeans_iterations
        return {name: value for name, value in options.items() if value not in ("auto", 0)}
