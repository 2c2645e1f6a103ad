"""Options of the data."""

from typing import Annotated, Literal

from annotated_types import Ge, Lt

from dml_jax.options.fields import (
    AtLeastTwo,
    Fraction,
    NonNegativeInt,
    Positive,
    PositiveInt,
    Probability,
    require,
    section,
)

Sampler = Literal["balanced", "shuffled", "mpn", "mpn_redraw", "hist_balanced", "diva", "ms"]
Crop = Literal["none", "random_resized", "random", "centre"]
WITHOUT_CLASSES = ("shuffled", "mpn_redraw")  # samplers that do not draw images by class


@section
class Data:
    """Which images are used, and how they become batches."""

    name: str = "digits"  # a module of dml_jax/data/datasets
    path: str = ""  # of the prepared data set or of a folder of images; empty for built-in data sets
    sampler: Sampler = "balanced"  # how batches are drawn, see dml_jax/data/samplers
    batch_size: AtLeastTwo = 64  # images per step, over all devices
    images_per_class: PositiveInt = 4  # in a batch, and in test-time batches; "shuffled" and "mpn_redraw" ignore it
    crop: Crop = "none"  # in training; evaluation crops the centre
    image_size: NonNegativeInt = 0  # side of the crop in pixels
    # Side of the crop in training if it differs, for convolutional networks: smaller crops make training faster, and
    # objects look as large in a random part of an image as they will in a larger crop of the whole.
    training_size: NonNegativeInt = 0
    resize: NonNegativeInt = 0  # shorter side in pixels before "random", "centre" and the crop of the evaluation
    interpolation: Literal["bilinear", "bicubic"] = "bilinear"  # of every resizing
    resize_first: bool = False  # also before "random_resized"
    # Shrinks large JPEG files while they are decoded, to a shorter side of `resize` or more: faster if it is half the
    # original or less, but pixel values differ, also in evaluation, and crops of a small part of an image lose detail.
    decode_scaled: bool = False
    crop_scale: tuple[Positive, Positive] = (0.08, 1.0)  # fraction of the area that "random_resized" crops
    crop_ratio: tuple[Positive, Positive] = (3 / 4, 4 / 3)  # its width / height
    flip: Probability = 0.0  # probability of a horizontal flip; this and the following apply to training only
    jitter: Annotated[float, Ge(0), Lt(1)] = 0.0  # largest relative change of brightness, contrast and saturation
    greyscale: Probability = 0.0  # probability of conversion to greyscale
    erasing: Probability = 0.0  # probability of erasing a random box, after normalisation (MPN)
    validation_share: Fraction = 0.0  # of the training classes, held out if the data set has no validation split
    threads: PositiveInt = 2  # that read batches ahead
    workers: NonNegativeInt = 0  # processes that read batches instead of threads; 0: none
    prefetch: PositiveInt = 4  # batches read ahead

    def __post_init__(self) -> None:
        if self.sampler not in WITHOUT_CLASSES:
            size, images = self.batch_size, self.images_per_class
            require(size % images == 0, "images_per_class", images, f"must divide batch_size={size}")
            rule = f"a batch would hold one class only (images_per_class={images}); losses need two or more"
            require(size > images, "batch_size", size, rule)
        if self.crop != "none":
            require(self.image_size > 0, "image_size", self.image_size, f"crop={self.crop!r} needs a size")
            rule = f"must be at least image_size={self.image_size}"
            require(self.resize >= self.image_size, "resize", self.resize, rule)
        else:
            for key in ("image_size", "resize", "training_size"):
                rule = "crop='none' does not use it; set it to 0, or choose a crop"
                require(getattr(self, key) == 0, key, getattr(self, key), rule)
        if self.decode_scaled:
            require(self.crop != "none", "decode_scaled", True, "needs data.crop and data.resize")
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
