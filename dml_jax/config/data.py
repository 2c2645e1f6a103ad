"""Options of the data."""

from typing import Annotated, ClassVar, Literal

from annotated_types import Ge, Lt

from dml_jax.config.fields import (
    AtLeastTwo,
    Fraction,
    NonNegativeInt,
    Positive,
    PositiveInt,
    Probability,
    require,
    section,
)  # fmt: skip
from dml_jax.config.needs import Needs

Sampler = Literal["balanced", "shuffled", "mpn", "mpn_redraw", "hist_balanced", "diva", "ms"]
Crop = Literal["none", "random_resized", "random", "centre"]
BUILT_IN = ("digits",)  # data sets that come with a requirement
WITHOUT_CLASSES = ("shuffled", "mpn_redraw")  # samplers that do not draw images by class
READ = Needs(f"another data.name than {', '.join(BUILT_IN)}", lambda c: c.data.name not in BUILT_IN)
BY_CLASS = Needs(
    f"evaluation.refine or another data.sampler than {', '.join(WITHOUT_CLASSES)}",
    lambda c: c.data.sampler not in WITHOUT_CLASSES or c.evaluation.refine,
)
CROPPED = Needs("a data.crop", lambda c: c.data.crop != "none")
OF_ANY_SIZE = Needs(
    "a convolutional network as the backbone, as others have positions for one size of images",
    lambda c: c.backbone.name not in ("vit", "deit", "siglip"),
)
# Features are computed from crops of the evaluation's size, flipped at random.
ON_IMAGES = Needs("train.feature_views=0", lambda c: not c.train.feature_views)
RANDOM_RESIZED = Needs("data.crop='random_resized'", lambda c: c.data.crop == "random_resized")
THREADED = Needs("data.workers=0", lambda c: c.data.workers == 0)


@section
class Data:
    """Which images are used, and how they become batches."""

    KEY: ClassVar = "data"

    name: str = "digits"  # a module of dml_jax/data/formats
    path: Annotated[str, READ] = ""  # of the prepared data set or of a folder of images; empty for built-in data sets
    sampler: Sampler = "balanced"  # how batches are drawn, see dml_jax/data/samplers
    batch_size: AtLeastTwo = 64  # images per step, over all devices
    images_per_class: Annotated[PositiveInt, BY_CLASS] = 4  # in a batch, and in test-time batches
    crop: Crop = "none"  # in training; evaluation crops the centre
    image_size: Annotated[NonNegativeInt, CROPPED] = 0  # side of the crop in pixels
    # Side of the crop in training if it differs, for convolutional networks: smaller crops make training faster, and
    # objects look as large in a random part of an image as they will in a larger crop of the whole.
    training_size: Annotated[NonNegativeInt, CROPPED, OF_ANY_SIZE, ON_IMAGES] = 0
    # Shorter side in pixels before "random", "centre" and the crop of the evaluation.
    resize: Annotated[NonNegativeInt, CROPPED] = 0
    # Of every resizing.
    interpolation: Annotated[Literal["bilinear", "bicubic"], CROPPED] = "bilinear"
    resize_first: Annotated[bool, RANDOM_RESIZED] = False  # also before "random_resized"
    # Shrinks large JPEG files while they are decoded, to a shorter side of `resize` or more: faster if it is half the
    # original or less, but pixel values differ, also in evaluation, and crops of a small part of an image lose detail.
    decode_scaled: Annotated[bool, CROPPED] = False
    # Turns photographs upright as their EXIF orientation says, which the loaders of the papers' authors do not.
    exif_rotation: Annotated[bool, READ] = True
    # Fraction of the area that "random_resized" crops.
    crop_scale: Annotated[tuple[Positive, Positive], RANDOM_RESIZED] = (0.08, 1.0)
    crop_ratio: Annotated[tuple[Positive, Positive], RANDOM_RESIZED] = (3 / 4, 4 / 3)  # its width / height
    flip: Probability = 0.0  # probability of a horizontal flip; this and the following apply to training only
    # Largest relative change of brightness, contrast and saturation.
    jitter: Annotated[float, Ge(0), Lt(1), ON_IMAGES] = 0.0
    greyscale: Annotated[Probability, ON_IMAGES] = 0.0  # probability of conversion to greyscale
    # Probability of erasing a random box, after normalisation (MPN).
    erasing: Annotated[Probability, ON_IMAGES] = 0.0
    validation_share: Fraction = 0.0  # of the training classes, held out if the data set has no validation split
    threads: Annotated[PositiveInt, THREADED] = 2  # that read batches ahead
    workers: NonNegativeInt = 0  # processes that read batches instead of threads; 0: none

    def __post_init__(self) -> None:
        if self.sampler not in WITHOUT_CLASSES:
            size, images = self.batch_size, self.images_per_class
            require(size % images == 0, "images_per_class", images, f"must divide data.batch_size={size}")
            rule = f"a batch would hold one class only (data.images_per_class={images}); losses need two or more"
            require(size > images, "batch_size", size, rule)
        if self.crop != "none":
            require(self.image_size > 0, "image_size", self.image_size, f"crop={self.crop!r} needs a size")
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
    def decoded_side(self) -> int:
        """The shorter side in pixels that decoding a JPEG file must leave; 0 for the full size."""
        return self.resize if self.decode_scaled else 0
