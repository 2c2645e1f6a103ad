"""The sections of a configuration that every run has: data, training and evaluation."""

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
    Needs,
    NonEmpty,
    NonNegative,
    NonNegativeInt,
    Positive,
    PositiveInt,
    Probability,
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
FROM_FILES = Needs("another data.name than digits", lambda c: c.data.name != "digits")
BY_CLASS = Needs(
    f"evaluation.refine or another data.sampler than {', '.join(WITHOUT_CLASSES)}",
    lambda c: c.data.sampler not in WITHOUT_CLASSES or c.evaluation.refine,
)
HELD_OUT = Needs("data.split='classes'", lambda c: c.data.split == "classes")
CLEAN = Needs("evaluation.protocol='clean'", lambda c: c.evaluation.protocol == "clean")
ALL = Needs(
    "train.select='last' or 'mixture', because no tested class is unseen",
    lambda c: c.train.select in ("last", "mixture"),
)
CROPPED = Needs("a data.crop", lambda c: c.data.crop != "none")
OF_ANY_SIZE = Needs(
    "a convolutional network as the backbone, as others have positions for one size of images",
    lambda c: not getattr(c.backbone, "fixed_size", False),
)
# Features are computed from crops of the evaluation's size, flipped at random.
ON_IMAGES = Needs("train.feature_views=0", lambda c: not c.train.feature_views)
ON_FEATURES = Needs("train.feature_views", lambda c: c.train.feature_views)
RANDOM_RESIZED = Needs("data.crop='random_resized'", lambda c: c.data.crop == "random_resized")
Optimizer = Annotated[str, AfterValidator(Named(("adam", "adamw", "radam", "sgd")))]
WITH_MOMENTUM = Needs("train.optimizer='sgd'", lambda c: c.train.optimizer == "sgd")
LATE = Needs("train.warmup_epochs", lambda c: c.train.warmup_epochs)
STEPPED = Needs("train.schedule='step'", lambda c: c.train.schedule == "step")
WITH_MILESTONES = Needs(
    "train.period or train.milestones",
    lambda c: c.train.schedule != "step" or c.train.period or c.train.milestones,
)
SCALED = Needs("train.scale_rates='linear' or 'sqrt'", lambda c: c.train.scale_rates != "none")
WITH_BLOCKS = Needs(
    "a vision transformer as the backbone, which is trained",
    lambda c: hasattr(c.backbone, "layer") and not backbone_is_frozen(c),
)
SELECTED = Needs("train.select='validation' or 'test'", lambda c: c.train.selects_steps)
FIXED_COUNT = ("kmeans", "ward", "spectral", "birch")  # find a given number of clusters
DENSITY_BASED = ("dbscan", "optics")  # determine that number, and label outliers as noise
# How batches for test-time refinement are made: from neighbours, or from clusters.
BATCHES = ("reciprocal", "neighbors", *FIXED_COUNT, *DENSITY_BASED)
Refine = Annotated[str, AfterValidator(Named(BATCHES))]


def backbone_is_frozen(config: Any) -> bool:
    """Whether no part of the backbone is trained."""
    groups = config.train.groups.items()
    parts = [group for name, group in groups if name.split("/")[0] == "backbone"]
    return bool(parts) and all(group.freeze for group in parts)


@section
class Data:
    """Which images are used, and how they become batches."""

    KEY: ClassVar = "data"

    name: str = "digits"  # a module of dml_jax/data/formats
    # A prepared data set or a folder of images; empty for built-in data sets.
    path: Annotated[str, FROM_FILES, Mark.PATH, Effect.NONE, Mark.SAME_EXPERIMENT] = ""
    # Which classes are used for training: "classes" holds out test classes; "all", for deployment.
    split: Annotated[Literal["classes", "all"], ALL] = "classes"
    # Another draw of the training classes, as many as before, from those of both splits; 0: the
    # data set's own. Replications of an experiment differ in it.
    class_split: Annotated[NonNegativeInt, HELD_OUT] = 0
    # Photographs taken together, which are never compared: "date" (EXIF), "folder", a column, or a
    # regular expression for file names.
    session: Annotated[str, FROM_FILES, CLEAN] = ""
    # Import path of a function of two lists of class names, (names [N], names [M]) -> [N, M]: how
    # related they are, such as by shared tags or in a hierarchy, in place of equal or not.
    relation: Annotated[str, AfterValidator(Named(("",)))] = ""
    sampler: Sampler = "balanced"  # how batches are drawn, see dml_jax/data/samplers
    batch_size: AtLeastTwo = 64  # images per step, over all devices
    images_per_class: Annotated[PositiveInt, BY_CLASS] = 4  # in a batch, and in test-time batches
    crop: Crop = "none"  # in training; evaluation crops the centre
    image_size: Annotated[NonNegativeInt, CROPPED] = 0  # side of the crop in pixels
    # Side of the crop in training if it differs, for convolutional networks: smaller crops are
    # faster, and objects in a random part of an image appear as large as in the evaluation.
    training_size: Annotated[NonNegativeInt, CROPPED, OF_ANY_SIZE, ON_IMAGES] = 0
    # Shorter side in pixels before "random", "centre" and the crop of the evaluation.
    resize: Annotated[NonNegativeInt, CROPPED] = 0
    # Used for all resizing.
    interpolation: Annotated[Literal["bilinear", "bicubic"], CROPPED] = "bilinear"
    resize_first: Annotated[bool, RANDOM_RESIZED] = False  # also before "random_resized"
    # Rotates photographs by their EXIF orientation, unlike the loaders of the papers' authors.
    exif_rotation: Annotated[bool, FROM_FILES] = True
    # Fraction of the area that "random_resized" crops.
    crop_scale: Annotated[tuple[Positive, Positive], RANDOM_RESIZED] = (0.08, 1.0)
    # Width / height of that crop.
    crop_ratio: Annotated[tuple[Positive, Positive], RANDOM_RESIZED] = (3 / 4, 4 / 3)
    flip: Probability = 0.0  # probability of a horizontal flip in training
    # Largest relative change of brightness, contrast and saturation.
    jitter: Annotated[float, Ge(0), Lt(1), ON_IMAGES] = 0.0
    greyscale: Annotated[Probability, ON_IMAGES] = 0.0  # probability of conversion to greyscale
    # Probability of erasing a random box, after normalisation (MPN).
    erasing: Annotated[Probability, ON_IMAGES] = 0.0
    # Fraction of the training classes that is held out if the data set has no validation split.
    validation_share: Fraction = 0.0
    # Processes that read batches ahead; 0: only threads. -1: for photographs on GPUs or TPUs, one
    # less than the cores that the process may use, at most 16 per device; 0 if these are fewer than
    # 4 per device, or /dev/shm has less than 1 GiB.
    workers: Annotated[int, Ge(-1), Lt(LIMIT), Effect.NONE, Mark.SAME_EXPERIMENT] = -1
    # Threads that read batches ahead; 0: one per core that the process may use, at most 8; in each
    # process of data.workers, one.
    threads: Annotated[NonNegativeInt, Effect.NONE, Mark.SAME_EXPERIMENT] = 0

    def __post_init__(self) -> None:
        if self.sampler not in WITHOUT_CLASSES:
            size, images = self.batch_size, self.images_per_class
            rule = f"must divide data.batch_size={size}"
            require(size % images == 0, "images_per_class", images, rule)
            only = f"a batch would hold one class only (data.images_per_class={images})"
            require(size > images, "batch_size", size, f"{only}; losses need two or more")
        if self.crop != "none":
            rule = f"crop={self.crop!r} needs a size"
            require(self.image_size > 0, "image_size", self.image_size, rule)
            rule = f"must be at least image_size={self.image_size}"
            require(self.resize >= self.image_size, "resize", self.resize, rule)
        if self.crop == "random":
            rule = f"must not exceed resize={self.resize}, the side that crop='random' cuts from"
            require(self.training_size <= self.resize, "training_size", self.training_size, rule)
        for key in ("crop_scale", "crop_ratio"):
            low, high = getattr(self, key)
            require(low <= high, key, (low, high), "must be increasing")
        require(self.crop_scale[1] <= 1, "crop_scale", self.crop_scale, "must not exceed 1")

    @property
    def training_side(self) -> int:
        """Side of the crop in training, in pixels."""
        return self.training_size or self.image_size

    @property
    def tested(self) -> str:
        """Which classes the results at the end are of."""
        return "training classes" if self.split == "all" else "unseen classes"


@section
class Group:
    """How one parameter group is trained."""

    learning_rate: NonNegative  # before the schedule
    weight_decay: NonNegative = 0.0  # decoupled in AdamW and RAdam, else added to the gradient
    # Whether the group is trained in the warm-up epochs.
    warmup: Annotated[Literal["train", "freeze"], LATE] = "train"
    # Never trained; its batch statistics stay unchanged as well, and a backbone normalises by them.
    freeze: bool = False
    # Trains updates of this rank of the group's matrices instead of its parameters (LoRA); 0: no.
    rank: NonNegativeInt = 0

    def __post_init__(self) -> None:
        rule = "a frozen group has no updates; set freeze=false"
        require(not (self.freeze and self.rank), "rank", self.rank, rule)


@section
class Train:
    """Length, optimizer and schedule of the training."""

    KEY: ClassVar = "train"

    # By names that the method defines, or by paths: "backbone/layer1_*" takes precedence.
    groups: dict[str, Group]
    steps: NonNegativeInt = 0  # length in steps
    epochs: NonNegativeInt = 0  # or length in epochs, counted as in the method's paper
    # Epochs before the others, at the full learning rate; groups may be frozen in them.
    warmup_epochs: NonNegativeInt = 0
    # Steps in which all learning rates rise linearly from zero.
    linear_warmup: NonNegativeInt = 0
    # Trains on features of the frozen backbone, computed once for this many views of each training
    # image: the evaluation's crop, then random crops. 0: trains on images.
    feature_views: NonNegativeInt = 0
    # Directory where these features are kept; empty: `features` beside the work directory.
    features: Annotated[str, ON_FEATURES, Mark.PATH, Effect.NONE, Mark.SAME_EXPERIMENT] = ""
    # Parts in which a batch is encoded, for batches larger than the memory; same results.
    chunks: PositiveInt = 1
    # The backbone and products in the heads; losses and the optimizer always use float32.
    precision: Literal["float32", "tensorfloat32", "bfloat16"] = "float32"
    optimizer: Optimizer = "adam"  # with PyTorch's conventions and defaults
    momentum: Annotated[Fraction, WITH_MOMENTUM] = 0.0  # used by sgd
    # Multiplies learning rates by data.batch_size / rates_for_batch, or by its square root.
    scale_rates: Literal["none", "linear", "sqrt"] = "none"
    # The batch size for which the learning rates are given; 0: the configuration file's.
    rates_for_batch: Annotated[NonNegativeInt, SCALED] = 0
    # Applies to all learning rates.
    schedule: Annotated[Literal["constant", "cosine", "step"], WITH_MILESTONES] = "constant"
    # "step" multiplies by gamma every time that this many epochs have passed, without warm-up.
    period: Annotated[NonNegativeInt, STEPPED] = 0
    # Or the epochs after which it multiplies by gamma; warm-up not counted.
    milestones: Annotated[tuple[NonNegativeInt, ...], STEPPED] = ()
    # Factor of the learning rates after a period or milestone.
    gamma: Annotated[float, Gt(0), Le(1), STEPPED] = 0.1
    # Ratio of the rates of a vision transformer's block and the next.
    layer_decay: Annotated[float, Gt(0), Le(1), WITH_BLOCKS] = 1.0
    # Steps between two lines of metrics.jsonl.
    log_every: Annotated[PositiveInt, Effect.NONE, Mark.SAME_EXPERIMENT] = 20
    # Steps between two evaluations; 0: after each epoch if the length is in epochs.
    evaluate_every: Annotated[NonNegativeInt, Effect.SELECTION] = 0
    # Steps between two checkpoints.
    checkpoint_every: Annotated[PositiveInt, Effect.NONE, Mark.SAME_EXPERIMENT] = 200
    # Steps between two checkpoints that are not deleted, for analyses; 0: none.
    keep_every: Annotated[NonNegativeInt, Effect.NONE, Mark.SAME_EXPERIMENT] = 0
    # Which model is reported: the last; of those evaluated, the best on the validation or the test
    # classes; or the best mixture of published and trained weights on the validation classes.
    select: Literal["last", "validation", "test", "mixture"] = "last"
    # Epochs (without warm-up) that restart from the best model.
    reload_best_epochs: Annotated[tuple[NonNegativeInt, ...], SELECTED] = ()

    def __post_init__(self) -> None:
        rule = f"give a positive number of steps or of epochs (={self.epochs}), not both"
        require((self.steps > 0) != (self.epochs > 0), "steps", self.steps, rule)
        rule = f"scale_rates={self.scale_rates!r} needs the batch size of the learning rates"
        require(self.scale_rates == "none" or self.rates_for_batch > 0, "rates_for_batch", 0, rule)
        increasing = list(self.milestones) == sorted(set(self.milestones))
        require(increasing, "milestones", self.milestones, "must be increasing")
        rule = f"give milestones or a period (={self.period}), not both"
        require(not (self.milestones and self.period), "milestones", self.milestones, rule)

    @property
    def selects_steps(self) -> bool:
        """Whether models are evaluated during training, and the best is reported."""
        return self.select in ("validation", "test")


def _refined(kinds: tuple[str, ...]) -> Needs:
    what = f"one of {', '.join(kinds)} in evaluation.refine"
    return Needs(what, lambda c: not set(kinds).isdisjoint(c.evaluation.refine))


BEST = "best"  # instead of the name of a test-time variant
TestVariants = dict[str, dict[str, Any]]
TEST_VARIANTS = Needs("evaluation.test_variants", lambda c: c.evaluation.test_variants)
CLUSTERED = Needs("evaluation.cluster", lambda c: c.evaluation.cluster)


@section
class Evaluation:
    """How embeddings are evaluated."""

    KEY: ClassVar = "evaluation"

    # Excludes the query by its index, or the first neighbour (authors).
    protocol: Annotated[Literal["clean", "paper"], Effect.SELECTION] = "clean"
    # The values of K for Recall@K.
    ks: Annotated[tuple[PositiveInt, ...], NonEmpty, Mark.SAME_EXPERIMENT] = (1, 2, 4, 8)
    # Whether a query without another image of its class is a miss in Recall@K and MRR, or omitted.
    lone_queries: Literal["miss", "omit"] = "miss"
    batch_size: Annotated[PositiveInt, Mark.SAME_EXPERIMENT] = 256  # images embedded at once
    cluster: bool = True  # computes NMI with k-means at the end; slow with many thousand classes
    # Mean of the entropies in NMI; geometric in HIST's code.
    nmi_average: Annotated[Literal["arithmetic", "geometric"], CLUSTERED] = "arithmetic"
    # How k-means starts. "auto": up to 1,000 classes k-means++, the best of 10 starts of at most
    # 300 iterations; above, random rows, one start of at most 20 iterations.
    kmeans_init: Annotated[Literal["auto", "k-means++", "random"], CLUSTERED] = "auto"
    # Starts of k-means; 0: as many as with "auto".
    kmeans_restarts: Annotated[NonNegativeInt, CLUSTERED] = 0
    # Largest number of iterations of each start; 0: as with "auto".
    kmeans_iterations: Annotated[NonNegativeInt, CLUSTERED] = 0
    # Also evaluates test-time refinement in these batches (MPN) or by these functions.
    refine: Annotated[tuple[Refine, ...], Mark.SAME_EXPERIMENT] = ()
    # Functions of a query's ranking whose means are also reported.
    metrics: Annotated[tuple[ImportPath, ...], Mark.SAME_EXPERIMENT] = ()
    # Number of clusters for "kmeans", "ward", "spectral" and "birch".
    refine_clusters: Annotated[AtLeastTwo, _refined(FIXED_COUNT), Mark.SAME_EXPERIMENT] = 900
    # Largest distance of neighbours for "dbscan" and "optics", between unit embeddings.
    refine_eps: Annotated[Positive, _refined(DENSITY_BASED), Mark.SAME_EXPERIMENT] = 0.9
    # Neighbours of a core point for the same two.
    refine_min_samples: Annotated[AtLeastTwo, _refined(DENSITY_BASED), Mark.SAME_EXPERIMENT] = 5
    # Test-time variants of the model, all evaluated: by name, the options of the method that they
    # change, such as DiVA's weights of the embeddings.
    test_variants: Annotated[TestVariants, Effect.EMBEDDING, Mark.SAME_EXPERIMENT] = field(
        default_factory=dict
    )
    # The variant that is reported and selects models; "best": the one with the highest Recall@1.
    test_variant: Annotated[str, TEST_VARIANTS, Effect.EMBEDDING, Mark.SAME_EXPERIMENT] = BEST
    # Also evaluates raw pixels, a colour histogram and the network before its training.
    controls: Annotated[bool, Mark.SAME_EXPERIMENT] = False
    # Measures at the end whether the mechanism of the method is at work, if the method says how.
    diagnose: Annotated[bool, Mark.SAME_EXPERIMENT] = False

    def __post_init__(self) -> None:
        rule = "must contain 1: models are selected and reported by Recall@1"
        require(1 in self.ks, "ks", self.ks, rule)
        test_variants, known = self.test_variants, (BEST, *self.test_variants)
        rule = f"must not use the name {BEST!r}"
        require(BEST not in test_variants, "test_variants", test_variants, rule)
        rule = f"must be one of {', '.join(known)}"
        require(self.test_variant in known, "test_variant", self.test_variant, rule)
        distinct = len(set(self.refine)) == len(self.refine)
        require(distinct, "refine", self.refine, "must not contain a name twice")
        names = {path.rpartition(".")[2] for path in self.metrics}
        rule = "must not contain two functions of one name, by which they are reported"
        require(len(names) == len(self.metrics), "metrics", self.metrics, rule)

    @property
    def clustering(self) -> dict[str, Any]:
        """Arguments of `kmeans.fit`, without those that depend on the number of classes."""
        given: dict[str, Any] = {"init": self.kmeans_init, "restarts": self.kmeans_restarts}
        given["max_iterations"] = self.kmeans_iterations
        return {name: value for name, value in given.items() if value not in ("auto", 0)}
