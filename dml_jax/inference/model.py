"""A trained model for inference; needs the work directory of a run but not its data set."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from PIL import Image as pillow

from dml_jax import buckets
from dml_jax.backbones.weights import store
from dml_jax.config.sections import OF_ANY_SIZE
from dml_jax.data import decode
from dml_jax.data.prepare.sources import File
from dml_jax.data.split import Split
from dml_jax.errors import CheckpointError, ConfigError, DataError
from dml_jax.evaluation import open_set
from dml_jax.evaluation.open_set import Photographs
from dml_jax.export import embedding_files, hub
from dml_jax.files import is_url, utf8_path
from dml_jax.inference.index import Image, Images, Index
from dml_jax.inference.inputs import Item
from dml_jax.methods.contract import PyTree, teaching
from dml_jax.train import embedding, step
from dml_jax.train import model as models
from dml_jax.train.distributed import mesh as meshes
from dml_jax.train.embedding import Embedder, check_finite
from dml_jax.train.model import TrainedModel


def locate(model: str | Path) -> Path:
    """The directory of a model, downloaded (`hf://user/name`) or converted (packaged weights) if necessary."""
    if str(model).startswith(hub.PREFIX):
        return hub.pull(str(model))
    if is_url(model):
        return buckets.read_copy("--model", str(model))
    return store.directory(utf8_path("--model", model))


def is_run(directory: Path) -> bool:
    """Whether the directory of a model is a run, and not converted weights."""
    return not models.is_published(directory)


class Classification(NamedTuple):
    """N images among the C training classes.

    Attributes:
      names: the best class of each image.
      logits: float32 [N, C], without margins; cosines to the nearest proxy of each class where the loss has proxies but
        no logits, as Proxy-Anchor.
      classes: the name of each column.
    """

    names: list[str]
    logits: np.ndarray
    classes: list[str]


class Model:
    """The trained embedding of a run, or a published network as it is; arguments as of `dml_jax.load`.

    Attributes:
      directory: work directory, or directory of the weights.
      config, step: of the run and its checkpoint.
      finished: whether the run has finished; its reported model is otherwise the newest or best so far, with a warning.
      shape: (H, W) in pixels of the images that the network sees.
      trained: configuration, pure functions and variables.
    """

    _added: tuple[bool, tuple[float, ...]] = (False, (1.0,))  # flip and scales beyond the configuration's

    def __init__(
        self,
        model: str | Path,
        checkpoint: str = "reported",
        *,
        trust_code: bool = False,
        flip: bool = False,
        scales: tuple[float, ...] = (1.0,),
    ):
        self.directory = locate(model)
        trained = models.load(self.directory, checkpoint, trust_code=trust_code)
        scales = tuple(map(float, scales))  # the fingerprint spells them
        if scales != (1.0,) and not OF_ANY_SIZE.holds(trained.config):
            raise ConfigError(f"scales={scales}: need {OF_ANY_SIZE.what}")
        self._added = (flip, scales)
        embed = embedding.averaged(trained.method.embed, flip=flip, scales=scales)
        everywhere = meshes.replicated(meshes.make())
        params, model_state = jax.device_put((trained.params, trained.model_state), everywhere)
        method = trained.method._replace(embed=embed)
        self._use(trained._replace(method=method, params=params, model_state=model_state))

    def _use(self, trained: TrainedModel) -> None:
        self.trained, self._embedder = trained, trained.embedder(few=True)
        self.config, self.step, self.shape = trained.config, trained.step, trained.shape
        self.finished = not trained.unfinished

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 of all parameters and of the model state; with the versions of an image if several are averaged."""
        stored = self.config.evaluation
        versions = [v for v in ((stored.flip, stored.scales), self._added) if v != (False, (1.0,))]
        variables = self.trained.params, self.trained.model_state
        return " ".join([step.fingerprint(variables), *map(str, versions)])

    def unseen(self) -> tuple[Photographs, list[str]]:
        """Images of the unseen classes of the run and the names of these, from its `embeddings/test` and `gallery`."""
        directory = self.directory / "embeddings"
        if not is_run(self.directory) or self._added != (False, (1.0,)):
            raise DataError(
                f"{self.directory}: has no embeddings of unseen classes by this model (published weights, --flip or "
                "--scales) to measure a threshold on; give --calibrate=DIRECTORY with class folders of other classes "
                "(in Python, Index.calibrate)"
            )
        splits = [embedding_files.read(directory / "test")]
        if (directory / "gallery").exists():
            splits.append(embedding_files.read(directory / "gallery"))
        if any(split.manifest.get("checkpoint_step") != self.step for split in splits):
            raise CheckpointError(
                f"{directory}: is of another checkpoint than step {self.step}, so it gives no threshold; write it with "
                f"--mode=export --checkpoint={self.step}"
            )
        rows = np.concatenate([split.embeddings for split in splits])
        labels = np.concatenate([split.labels for split in splits if split.labels is not None])
        columns = {name: [v for split in splits for v in split.metadata[name]] for name in splits[0].metadata}
        taken = np.array(columns.get("session", [""] * len(rows)), np.str_)
        given = columns.get("class_name", labels)
        names = [str(given[int(np.argmax(labels == label))]) for label in range(labels.max() + 1)]
        photographs = Photographs(rows, labels, taken)
        return photographs.where(open_set.choose(photographs)), names

    def enroll(self, classes: Mapping[str, Sequence[Image]]) -> Index:
        """An index of new classes, without training: `enroll({"wren": ["a.jpg", "b.jpg"], …}).classify(["x.jpg"])`."""
        index = Index(self)
        index.add(classes)
        return index

    def index(self, path: str | Path) -> Index:
        """Reads an index written by `Index.save`."""
        return Index.load(self, path)

    def read(self, image: Image | Item, name: str = "image") -> np.ndarray:
        """Reads an image (see `embed`) and transforms it as for evaluation: uint8 [H, W, 3].

        `name` stands for an image that is not a path in messages.
        """
        name = _name(image, name)
        if isinstance(image, Item):
            image = image.content
        data = self.config.data
        try:
            match image:
                case np.ndarray():
                    pixels = np.repeat(image[:, :, None], 3, axis=2) if image.ndim == 2 else image
                case pillow.Image():
                    pixels = decode.from_pillow(image, upright=data.exif_rotation)
                case str() | Path():
                    pixels = decode.rgb(File(Path(image)).read(), data.decoded_side, upright=data.exif_rotation)
                case bytes():
                    pixels = decode.rgb(image, data.decoded_side, upright=data.exif_rotation)
                case _:
                    pixels = np.asarray(image)
        except DataError as error:
            raise DataError(f"{name}: {error}") from error
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or pixels.size == 0:
            raise DataError(f"{name}: is {pixels.dtype} {list(pixels.shape)}; must be uint8 [height, width(, 3)]")
        return self._embedder.transformed(pixels, name)

    def embed(self, images: Images) -> np.ndarray:
        """Embeds images: float32 [N, D], rows of unit length.

        Args:
          images: paths or contents of image files, Pillow images, or arrays uint8, [h, w, 3] (RGB) or [h, w] (grey),
            also mixed.

        Raises:
          DataError: an image cannot be used, or its embedding is not finite; the message names its path or position.
        """
        return self._outputs(self._embedder, images)

    def classify(self, images: Images) -> Classification:
        """Scores of images for the classes that a run was trained on; for other classes, see `enroll`."""
        logits, classes = self._outputs(self._classifier, images), list(self.trained.classes)
        return Classification([classes[best] for best in logits.argmax(axis=1)], logits, classes)

    @cached_property
    def _classifier(self) -> Embedder:
        """Scores of images for the training classes."""
        method, count = self.trained.method, len(self.trained.classes)
        remedy = "enroll classes instead, or train with a classifier such as method.loss=arcface"
        if not count:
            raise DataError(f"{self.directory}: published weights have no classifier; {remedy}")

        def of_classifier(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array | None:
            return teaching(method)(params, model_state, images).logits

        def outputs(params: PyTree, model_state: PyTree, images: jax.Array) -> jax.Array:
            if (logits := of_classifier(params, model_state, images)) is None:
                assert method.hooks.scores is not None
                encoded, _ = method.encode(params, model_state, images[None], train=False)
                logits = method.hooks.scores(params, encoded)
            return logits[:, :count]  # tables of classes may be padded

        image, variables = jax.ShapeDtypeStruct((1, *self.shape, 3), np.uint8), self.trained[2:4]
        if method.hooks.scores is None and jax.eval_shape(of_classifier, *variables, image) is None:
            loss = getattr(self.config.method, "loss", self.config.method.name)
            raise DataError(f"{self.directory}: was trained with {loss}, which learns no classifier; {remedy}")
        return self.trained._replace(method=method._replace(embed=outputs)).embedder(few=True)

    def _outputs(self, embedder: Embedder, images: Images) -> np.ndarray:
        """Results of an embedder for images, float32 [N, …]; raises as `embed`."""
        single = isinstance(images, str | Path | bytes | pillow.Image)
        if single or (isinstance(images, np.ndarray) and images.ndim in (2, 3)):
            raise DataError("images: is a single image; give a list of images")
        if len(images) == 0:
            raise DataError("images: none were given; give at least one")
        if len(images) == 1:  # without threads, which would take longer than a small network
            rows = embedder.embed(self.trained, self.read(images[0], "image 0")[None])
            check_finite(rows, [_name(images[0], "image 0")])
            return rows
        (rows,) = embedder.stream(
            self.trained,
            lambda i: self.read(images[i], f"image {i}"),
            [range(len(images))],
            name=lambda i: _name(images[i], f"image {i}"),
        )
        return rows

    def embed_each(
        self, groups: Iterable[Sequence[Image | Item]], on_bad: Callable[[DataError], object] | None = None
    ) -> Iterator[np.ndarray]:
        """Embeds groups of images, each float32 [N, D]; images are read ahead across groups, see `Embedder.stream`."""
        return self._embedder.stream(self.trained, self.read, groups, name=_name, on_bad=on_bad)

    def embed_split(self, split: Split) -> np.ndarray:
        """Embeds the images of a split, float32 [N, D]."""
        return self._embedder.embed_split(self.trained, split)

    def embed_pixels(self, pixels: np.ndarray) -> np.ndarray:
        """Embeds images from `read` in one batch, uint8 [B, H, W, 3] -> float32 [B, D]."""
        return self._embedder.embed(self.trained, pixels)


def _name(image: Image | Item, otherwise: str = "image") -> str:
    """Name of an image in messages: its path if it is one."""
    if isinstance(image, Item):
        return image.name
    return str(image) if isinstance(image, str | Path) else otherwise
