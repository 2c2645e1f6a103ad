"""Networks on a CPU, compared with torch: training steps, and ResNet-50's forward pass.

ResNet-50 gets the same weights and images in both, and its feature maps must agree. The small
networks are those of the configurations for the digits and for Omniglot; their steps, and those of
ViT-S, are forward, backward and Adam.

EfficientNet-Lite0 gets the packaged weights in both, and embeddings must agree; batch norm is
frozen in its training step. The peer needs the package efficientnet-lite-pytorch; without it our
own time of embedding is shown, and the training step is left out. `embedding.py` compares with
onnxruntime.
"""

import os
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks.timing import Row, installed, row
from dml_jax.backbones import efficientnet_lite, resnet, vit
from dml_jax.backbones.contract import Backbone, PyTree
from dml_jax.backbones.weights import convert, converted, tensor_files
from dml_jax.commands.jax_setup import keep_freed_memory
from dml_jax.train.distributed import device_mesh

compiled = partial(
    jax.jit, compiler_options=device_mesh.compiler_options(device_mesh.make())
)  # as in training


def compare(batch: int, side: int, repeats: int) -> list[Row]:
    """Rows for `timing.table`.

    Raises:
      AssertionError: the feature maps differ.
      ImportError: torch is not installed.
    """
    import torch

    from benchmarks.torch_networks import ResNet50, normalise

    torch.set_num_threads(os.cpu_count() or 1)
    torch.manual_seed(0)
    theirs = ResNet50().to(memory_format=torch.channels_last)
    images = np.random.default_rng(0).integers(0, 256, (batch, side, side, 3), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "resnet50.pth"
        torch.save(theirs.state_dict(), file)
        checkpoint = convert.convert({"resnet50": tensor_files.read(file)})
        arrays = tensor_files.finite(checkpoint.tensors, "resnet50")
    params, stats = (
        jax.tree.map(jnp.asarray, converted.subtree(arrays, f"backbone/{part}/"))
        for part in ("params", "stats")
    )
    backbone = resnet.build(resnet.Config())

    forward = compiled(lambda p, s, x: backbone.apply(p, s, backbone.preprocess(x), train=False)[0])

    @compiled
    def gradient(
        params: PyTree, stats: PyTree, images: jax.Array
    ) -> tuple[tuple[jax.Array, PyTree], PyTree]:
        def loss(params: PyTree) -> tuple[jax.Array, PyTree]:
            features, new = backbone.apply(params, stats, backbone.preprocess(images), train=True)
            return jnp.mean(features.mean(axis=(1, 2)) ** 2), new

        return jax.value_and_grad(loss, has_aux=True)(params)

    pixels = torch.from_numpy(images)

    def forward_torch() -> torch.Tensor:
        with torch.no_grad():
            return theirs(normalise(pixels))

    def gradient_torch() -> None:
        for parameter in theirs.parameters():
            parameter.grad = None
        theirs(normalise(pixels)).mean((2, 3)).square().mean().backward()

    theirs.eval()
    ours_map, their_map = (
        np.asarray(forward(params, stats, images)),
        forward_torch().permute(0, 2, 3, 1).numpy(),
    )
    deviation = np.abs(ours_map - their_map).max() / np.abs(their_map).max()
    assert deviation < 1e-4, deviation
    case = f"ResNet-50, batch {batch}, {side}²"
    rows = [
        row(
            f"{case}, forward",
            lambda: forward(params, stats, images).block_until_ready(),
            forward_torch,
            repeats,
        )
    ]
    theirs.train()
    ours = lambda: jax.block_until_ready(gradient(params, stats, images))  # noqa: E731
    return [*rows, row(f"{case}, forward and backward", ours, gradient_torch, repeats)]


def small_network(name: str, side: int, batch: int, config: resnet.Config, repeats: int) -> Row:
    """A row for `timing.table`: a training step of a small residual network.

    Raises:
      ImportError: torch is not installed.
    """
    from torch import nn

    from benchmarks.torch_networks import small_resnet

    theirs = nn.Sequential(
        small_resnet(config.widths, config.stem), nn.AdaptiveAvgPool2d(1), nn.Flatten()
    )
    return training_step(name, side, batch, resnet.build(config), theirs, repeats)


def vision_transformer(side: int, batch: int, repeats: int) -> Row:
    """A row for `timing.table`: a training step of ViT-S/16.

    Raises:
      ImportError: torch is not installed.
    """
    from benchmarks.torch_networks import SmallVisionTransformer

    return training_step(
        "ViT-S/16", side, batch, vit.build(vit.Config()), SmallVisionTransformer(side), repeats
    )


def training_step(
    name: str, side: int, batch: int, backbone: Backbone, features: Any, repeats: int
) -> Row:
    """A row for `timing.table`: a training step of a network with a linear classifier.

    Args:
      name: of the network.
      side: of the images, in pixels.
      batch: number of images.
      backbone: our network, whose feature map is averaged.
      features: torch's network, a module whose output is [batch, channels].
      repeats: number of timed steps.

    Raises:
      ImportError: torch is not installed.
    """
    import torch
    from torch import nn

    from benchmarks.torch_networks import normalise

    torch.set_num_threads(os.cpu_count() or 1)
    classes, labels = 16, np.arange(batch) // 4
    images = np.random.default_rng(0).integers(0, 256, (batch, side, side, 3), dtype=np.uint8)

    optimizer = optax.adam(1e-3)
    params, stats = backbone.init(jax.random.key(0), (side, side))
    head = 0.1 * jax.random.normal(jax.random.key(1), (backbone.channels, classes))
    state = ((params, head), stats, optimizer.init((params, head)))

    @partial(compiled, donate_argnums=0)
    def step(
        state: tuple[PyTree, PyTree, PyTree], images: jax.Array
    ) -> tuple[PyTree, PyTree, PyTree]:
        def loss(trained: PyTree) -> tuple[jax.Array, PyTree]:
            features, new = backbone.apply(
                trained[0], state[1], backbone.preprocess(images), train=True
            )
            logits = features.mean(axis=(1, 2)) @ trained[1]
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), new

        gradients, new = jax.grad(loss, has_aux=True)(state[0])
        updates, moments = optimizer.update(gradients, state[2])
        return optax.apply_updates(state[0], updates), new, moments

    def ours() -> None:
        nonlocal state
        state = jax.block_until_ready(step(state, images))

    network = nn.Sequential(features, nn.Linear(backbone.channels, classes)).to(
        memory_format=torch.channels_last
    )
    pixels, targets = torch.from_numpy(images), torch.from_numpy(labels)
    adam = torch.optim.Adam(network.parameters(), 1e-3)

    def theirs() -> None:
        adam.zero_grad()
        nn.functional.cross_entropy(network(normalise(pixels)), targets).backward()
        adam.step()

    return row(f"{name}, batch {batch}, {side}², training step", ours, theirs, repeats)


SMALL = (
    (
        "digits",
        24,
        64,
        resnet.Config(block="basic", depths=(1, 1, 1), widths=(16, 32, 64), stem="small"),
    ),
    ("Omniglot", 48, 64, resnet.Config(block="basic", depths=(1, 1, 1), widths=(32, 64, 128))),
)


def rows(*, batch: int = 8, side: int = 224, repeats: int = 10) -> list[Row]:
    """One `timing.row` per network; both keep their memory between steps, as in the training
    command.

    Raises:
      ImportError: torch is not installed.
    """
    keep_freed_memory()
    small = [small_network(*network, 5 * repeats) for network in SMALL]
    return [*small, vision_transformer(side, batch, repeats), *compare(batch, side, repeats)]


def embed_lite0(images: np.ndarray) -> Callable[[], np.ndarray]:
    """A call that embeds with torch; raises ImportError if it or the network is not installed."""
    import torch

    from benchmarks.torch_networks import PooledFeatures

    network, pixels = PooledFeatures(), torch.from_numpy(images)

    def call() -> np.ndarray:
        with torch.inference_mode():
            return network(((pixels.float() - 127) / 128).permute(0, 3, 1, 2)).numpy()

    return call


def lite0(*, batch: int = 32, side: int = 224, repeats: int = 10) -> list[Row]:
    """A `timing.row` for embedding by EfficientNet-Lite0 and one for training it.

    Raises:
      AssertionError: the embeddings differ.
    """
    keep_freed_memory()
    images = np.random.default_rng(0).integers(0, 256, (batch, side, side, 3), dtype=np.uint8)
    backbone = efficientnet_lite.build(efficientnet_lite.Config(pretrained="lite0", freeze_bn=True))
    params, stats = backbone.init(jax.random.key(0), (side, side))
    embed = compiled(
        lambda p, s, x: backbone.apply(p, s, backbone.preprocess(x), train=False)[0].mean(
            axis=(1, 2)
        )
    )

    def ours() -> np.ndarray:
        return np.asarray(embed(params, stats, images))

    if theirs := installed(embed_lite0, images):
        deviation = np.abs(ours() - theirs()).max() / np.abs(theirs()).max()
        assert deviation < 1e-3, deviation
    found = [
        row(f"EfficientNet-Lite0, batch {batch}, {side}², embedding, torch", ours, theirs, repeats)
    ]
    with suppress(ImportError):
        from benchmarks.torch_networks import PooledFeatures

        name, features = "EfficientNet-Lite0, frozen batch norm", PooledFeatures()
        found.append(training_step(name, side, batch, backbone, features, repeats))
    return found
