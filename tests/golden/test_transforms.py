"""Decoding, resizing, cropping, erasing, normalising and sampling against Pillow, torchvision and the authors' code."""

import hashlib
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import PIL
import pytest

from dml_jax.backbones import contract
from dml_jax.config import Data
from dml_jax.data import augment, decode, transforms
from dml_jax.errors import DataError
from tests.golden import fixtures
from tests.golden.sampling import build, cases, epoch, files, keys, repeats

KNOWN = ("decode", "eval_transform", "normalise", "random_erasing", "random_resized_crop", "samplers")
# Its two resizing passes run in the other order.
OLD_PILLOW = int(PIL.__version__.split(".")[0]) < 13
PIXELS = {
    "imagenet": contract.Pixels(),
    "mpn_resnet": contract.Pixels(std=(0.299, 0.224, 0.225)),
    "bninception_hist_mpn": contract.CAFFE,
    "bninception_ms": contract.CAFFE,
    "bninception_diva": contract.Pixels(mean=(0.4078, 0.4588, 0.502), std=(0.0039, 0.0039, 0.0039), order="bgr"),
    "googlenet_transform_input": contract.Pixels(mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5)),
}


def test_every_file_is_known() -> None:
    for name in fixtures.names("transforms"):
        assert any(name.startswith(kind) for kind in KNOWN), name


@pytest.mark.parametrize("name", files("decode"))
def test_decoded_pixels(name: str) -> None:
    arrays, meta = fixtures.load("transforms", name)
    for kind, facts in meta["ok"].items():
        ours, pillow = decode.rgb(arrays[f"ok/{kind}/bytes"].tobytes()), arrays[f"ok/{kind}/rgb"]
        assert ours.dtype == np.uint8
        assert ours.shape == pillow.shape, kind
        if facts["pillow_mode"].startswith("I;16"):
            # Pillow clips 16-bit greyscale at 255; `decode` keeps the high byte. Where that is not 0, Pillow has 255.
            assert (pillow[ours > 0] == 255).all()
            assert len(np.unique(ours)) > 1 or pillow.max() < 255
            continue
        difference = np.abs(ours.astype(int) - pillow)
        assert difference.max() <= facts["tolerance"], kind
        assert difference.mean() <= 0.05, kind

    for kind, facts in meta["broken"].items():
        data = arrays[f"broken/{kind}/bytes"].tobytes()
        if facts["outcome"] == "error":
            with pytest.raises(DataError):
                decode.rgb(data)
        else:
            assert facts["outcome"] == "decoded_without_error", kind
            expected = arrays[f"broken/{kind}/rgb"]
            np.testing.assert_allclose(decode.rgb(data), expected, atol=1, err_msg=kind)


def expected(arrays: dict[str, np.ndarray], group: str, path: str) -> np.ndarray:
    old = f"{group}_le12/{path}"
    return arrays[old] if OLD_PILLOW and old in arrays else arrays[f"{group}/{path}"]


def check_geometry(ours: np.ndarray, resized: np.ndarray, crop: int, geometry: Any) -> None:
    height, width, top, left = geometry
    assert resized.shape[:2] == (height, width)
    np.testing.assert_array_equal(ours, resized[top : top + crop, left : left + crop])


@pytest.mark.parametrize("name", files("eval_transform"))
def test_shorter_side_and_centre_crop(name: str) -> None:
    arrays, _ = fixtures.load("transforms", name)
    for group in ("out", "square"):
        for path in keys(arrays, group, 2):
            image, recipe = path.split("/")
            size, crop = (int(part[1:]) for part in recipe.split("_"))
            source = arrays[f"src/{image}"]
            if group == "square":
                ours = transforms.centre_crop(transforms.resize(source, size, size), crop)
            else:
                data = Data(crop="centre", resize=size, image_size=crop)
                ours, resized = (transforms.evaluation(data)(source), transforms.resize_shorter(source, size))
                check_geometry(ours, resized, crop, arrays[f"geom/{path}"])
            np.testing.assert_array_equal(ours, expected(arrays, group, path), err_msg=path)
    for size in keys(arrays, "pad_crop", 2):
        if size.startswith("new/"):
            padded = transforms.centre_crop(arrays["src/small"], int(size.split("/")[1]))
            np.testing.assert_array_equal(padded, arrays[f"pad_crop/{size}"], err_msg=size)


@pytest.mark.parametrize("name", files("eval_transform"))
def test_geometry_of_full_sized_images(name: str) -> None:
    arrays, meta = fixtures.load("transforms", name)
    for size, crop, height, width, *geometry in arrays["geom_table"].tolist():
        numbers = np.arange(height * width, dtype=np.uint32).view(np.uint8)
        resized = transforms.resize_shorter(numbers.reshape(height, width, 4)[:, :, :3], size)
        check_geometry(transforms.centre_crop(resized, crop), resized, crop, geometry)
    for case in meta["full_size_hashes"]:
        y, x, k = np.ogrid[: case["h"], : case["w"], :3]
        values = case["a"] * x + case["b"] * y + (x * y) // case["c"]
        values = values + 71 * k + ((x // 16 + y // 16) % 2) * 97
        source = (values % 256).astype(np.uint8)
        assert hashlib.sha256(source.tobytes()).hexdigest() == case["src_sha256"]
        shorter = transforms.resize_shorter(source, case["s"])
        square = transforms.resize(source, case["s"], case["s"])
        for prefix, image in (("", shorter), ("square_", square)):
            ours = hashlib.sha256(transforms.centre_crop(image, case["crop"]).tobytes()).hexdigest()
            assert ours == case[f"{prefix}sha256{'_le12' if OLD_PILLOW else ''}"], case


@pytest.mark.parametrize("name", files("random_resized_crop"))
def test_crop_then_resize(name: str) -> None:
    arrays, _ = fixtures.load("transforms", name)
    for image in keys(arrays, "src"):
        expected_crops = arrays[f"out/{image}"].copy()
        if OLD_PILLOW:
            expected_crops[arrays[f"le12_index/{image}"]] = arrays[f"out_le12/{image}"]
        side = expected_crops.shape[1]
        source, boxes = arrays[f"src/{image}"], arrays[f"boxes/{image}"].tolist()
        crops = [transforms.crop(source, tuple(box)) for box in boxes]
        ours = np.stack([transforms.resize(crop, side, side) for crop in crops])
        np.testing.assert_array_equal(ours, expected_crops, err_msg=image)
        exact = ours[arrays[f"float64_index/{image}"]] - np.round(arrays[f"float64/{image}"])
        assert np.abs(exact).max(initial=0) <= 1


def assert_same_distribution(values: np.ndarray, arrays: dict[str, np.ndarray], path: str, reference: float) -> None:
    """Kolmogorov-Smirnov test from both sides of every step of the reference; false positive rate 1e-5."""
    bound = 2.5 * np.sqrt(1 / len(values) + 1 / reference)
    quantiles, ordered = arrays[f"{path}/q"], np.sort(values)
    below = np.searchsorted(ordered, quantiles - 1e-12, "left") / len(values)
    up_to = np.searchsorted(ordered, quantiles + 1e-12, "right") / len(values)
    assert np.abs(up_to - arrays[f"{path}/cdf_le"]).max() < bound, path
    assert np.abs(below - arrays[f"{path}/cdf_lt"]).max() < bound, path


@pytest.mark.parametrize("name", files("random_resized_crop"))
def test_drawn_crops(name: str) -> None:
    arrays, _ = fixtures.load("transforms", name)
    rng = np.random.default_rng(0)
    for case in keys(arrays, "draws"):
        draws = f"draws/{case}"
        height, width = (int(side) for side in arrays[f"{draws}/size"])
        limits: Any = [tuple(arrays[f"{draws}/{key}"].tolist()) for key in ("scale", "ratio")]
        draw = partial(transforms.random_resized_box, height, width, *limits, rng)
        boxes = np.array([draw() for _ in range(15_000)])
        top, left, h, w = boxes.T
        values = {"area": h * w / (height * width), "logratio": np.log(w / h)}
        values["top"] = (top / np.maximum(height - h, 1))[h < height]
        values["left"] = (left / np.maximum(width - w, 1))[w < width]
        for quantity, drawn in values.items():
            path = f"{draws}/{quantity}"
            assert_same_distribution(drawn, arrays, path, float(arrays[f"{path}/n"]))


@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", files("random_erasing"))
def test_scripted_erasing(name: str) -> None:
    arrays, _ = fixtures.load("transforms", name)
    np.testing.assert_array_equal(augment.ERASED, arrays["fill"])
    _, height, width = arrays["image"].shape
    erased_box = jax.jit(augment.erased_box, static_argnums=(3, 4))
    for row, expected_image in zip(arrays["script"], arrays["out"], strict=True):
        chance, share, ratio, _, _, first, second, top, left, tall, wide = row
        shares, ratios = np.array([share, 0.05]), np.array([ratio, 1.0])
        corner = np.array([(top + 0.5) / (height - tall + 1), (left + 0.5) / (width - wide + 1)])
        box = erased_box(shares, ratios, np.stack([corner, corner]), height, width)
        ours = arrays["image"].copy()
        if chance < 0.5:
            assert bool(first) != bool(second)
            y, x, h, w = (int(side) for side in box)
            assert (y, x, h, w) == (top, left, tall, wide)
            ours[:, y : y + h, x : x + w] = arrays["fill"][:, None, None]
        np.testing.assert_array_equal(ours, expected_image)
    _, height, width = arrays["never_fits_image"].shape
    np.testing.assert_array_equal(arrays["never_fits_image"], arrays["never_fits_out"])
    tries = np.full(augment.TRIES, 0.4), np.full(augment.TRIES, 3.0), np.zeros((augment.TRIES, 2))
    assert erased_box(*tries, height, width)[2] == 0


@pytest.mark.parametrize("name", files("random_erasing"))
def test_drawn_erasing(name: str) -> None:
    arrays, meta = fixtures.load("transforms", name)
    count = 20_000
    for case in keys(arrays, "draws"):
        draws = f"draws/{case}"
        height, width = (int(side) for side in arrays[f"{draws}/size"])
        draw = jax.jit(augment.erased_boxes, static_argnums=(1, 2, 3, 4))
        boxes = draw(jax.random.key(0), 0.5, count, height, width)
        top, left, tall, wide = (np.asarray(side) for side in boxes)
        erased, share = tall > 0, float(arrays[f"{draws}/erased_share"])
        assert abs(erased.mean() - share) < 4 * np.sqrt(0.25 / count)
        top, left, tall, wide = top[erased], left[erased], tall[erased], wide[erased]
        assert (top + tall <= height).all()
        assert (left + wide <= width).all()
        values = {"area": tall * wide / (height * width), "ratio": tall / wide}
        values |= {"logratio": np.log(tall / wide), "height": 1.0 * tall, "width": 1.0 * wide}
        values |= {"top": top / (height - tall), "left": left / (width - wide)}
        for quantity, drawn in values.items():
            assert_same_distribution(drawn, arrays, f"{draws}/{quantity}", meta["draws"] / 2)


@pytest.mark.parametrize("name", files("normalise"))
def test_normalised_pixels(name: str) -> None:
    arrays, _ = fixtures.load("transforms", name)
    for recipe in keys(arrays, "expected"):
        if recipe == "mpn_resnet_erased_fill":
            np.testing.assert_array_equal(augment.ERASED, arrays[f"expected/{recipe}"])
            continue
        image = jnp.asarray(arrays["image"])[None]
        ours, theirs = contract.preprocess(PIXELS[recipe])(image)[0], arrays[f"expected/{recipe}"]
        assert ours.dtype == np.float32
        tolerance = 1e-4 if recipe.startswith("bninception") else 1e-6
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=tolerance, err_msg=recipe)


@pytest.mark.parametrize("name", files("samplers"))
def test_ms_sampler(name: str) -> None:
    for case, facts in cases(name, "ms"):
        sizes, (batch_size, images, steps) = (facts["class_sizes"], (int(v) for v in facts["bs_k_iters"]))
        labels = np.repeat(np.arange(len(sizes)), sizes)
        sampler = build("distinct_chunks", sizes, batch_size, images)
        refills = sampler.epoch(steps - 1) + 1
        low, high = facts["refills_min_max"]
        assert low <= refills <= high, case
        repeated = []
        for number in range(20):
            batches = epoch(sampler, number)
            owners = labels[batches].reshape(-1, images)
            assert (owners == owners[:, :1]).all()
            assert repeats(owners[:, 0].reshape(len(batches), -1)) == 0
            chunks = np.bincount(owners[:, 0], minlength=len(sizes))
            assert (chunks <= facts["chunks_per_class_per_refill"]).all()
            assert np.sum(chunks < facts["chunks_per_class_per_refill"]) < batch_size // images
            seen = np.bincount(batches.reshape(-1), minlength=len(labels))
            assert (seen[sizes[labels] >= images] <= 1).all()
            repeated.append(repeats(batches))
        theirs = float(facts["share_batches_repeated_image"])
        assert_close_shares(float(np.mean(repeated)), 20 * len(batches), theirs, 50 * steps, case)


def assert_close_shares(ours: float, count: int, theirs: float, their_count: int, note: str) -> None:
    """Two shares of (nearly) independent batches or chunks agree within five standard deviations."""
    share = (ours * count + theirs * their_count) / (count + their_count)
    assert abs(ours - theirs) <= 5 * np.sqrt(share * (1 - share) * (1 / count + 1 / their_count)) + 1e-9, note
