"""MPN's samplers against its authors' code, and their errors."""

import numpy as np
import pytest

from dml_jax.errors import ConfigError
from tests.data import sampled
from tests.data.sampled import LABELS, SIZES
from tests.golden import fixtures
from tests.golden.sampling import build, cases, epoch, files, keys, repeats


@pytest.mark.parametrize("name", files("samplers"))
def test_sampler(name: str) -> None:
    for case, facts in cases(name, "mpn"):
        sizes, (images, classes) = facts["class_sizes"], (int(v) for v in facts["n_c"])
        labels = np.repeat(np.arange(len(sizes)), sizes)
        if classes == 1:
            with pytest.raises(ConfigError, match="one class"):
                build("chunks", sizes, images, images)
            continue
        sampler = build("chunks", sizes, images * classes, images)
        assert sampler.first_step(1) == facts["n_batches"], case
        shares, seen = [], []
        for number in range(60):
            batches = epoch(sampler, number)
            chunks = batches.reshape(-1, images)
            owners = labels[chunks]
            assert (owners == owners[:, :1]).all()
            counts = np.bincount(owners[:, 0], minlength=len(sizes))
            assert (counts >= facts["base_chunks_per_class"]).all()
            assert np.sum(counts - facts["base_chunks_per_class"]) == facts["topup_chunks"]
            seen.append(np.bincount(batches.reshape(-1), minlength=len(labels)))
            shares.append([repeats(chunks), repeats(owners[:, 0].reshape(-1, classes)), repeats(batches)])
        assert np.min(seen) >= np.min(facts["occ_min"]) >= 1
        repeats_of = ("chunks_with_repeated_image", "batches_with_repeated_class", "batches_with_repeated_image")
        for column, key in enumerate(repeats_of):
            spread = np.std(np.array(shares)[:, column]) / np.sqrt(60) * np.sqrt(1 + 60 / 200)
            mean = np.mean(shares, axis=0)[column]
            assert abs(mean - facts[f"share_{key}"][1]) <= 4 * spread + 1e-9, (case, key)
        variance = np.bincount(labels, np.var(seen, axis=0)) / sizes  # the images of a class are exchangeable
        deviation = np.sqrt(variance * (1 / 60 + 1 / 200))[labels]
        assert (np.abs(np.mean(seen, axis=0) - facts["occ_mean"]) <= 6 * deviation + 1e-9).all(), case


@pytest.mark.parametrize("name", files("samplers"))
def test_redraw_sampler(name: str) -> None:
    arrays, _ = fixtures.load("transforms", name)
    for size in keys(arrays, "number"):
        if not size.isdigit():
            continue
        sizes = np.array([40, 61, 83, 107])
        sampler = build("redrawn_chunks", sizes, int(size), 1)
        lengths = [sampler.first_step(e + 1) - sampler.first_step(e) for e in range(200)]
        expected_counts: dict[int, float] = {}
        pairs = arrays[f"number/{size}/pairs"]
        for classes, images in pairs.tolist():
            assert classes * images == int(size)
            steps = -(-int(np.sum(np.maximum(sizes, images) // images + 1)) // classes)
            expected_counts[steps] = expected_counts.get(steps, 0) + 200 / len(pairs)
        assert set(lengths) == set(expected_counts)
        squares = sum((lengths.count(n) - count) ** 2 / count for n, count in expected_counts.items())
        assert squares < 25 + 3 * len(pairs)
    sizes = arrays["number/cub_epoch_class_sizes"]
    total = int(arrays["number/cub_epoch_c_n_batches_distinct"][0][:2].prod())
    sampler = build("redrawn_chunks", sizes, total, 1)
    drawn = 30 * len(arrays["number/cub_epoch_c_n_batches_distinct"])  # epochs, enough for every length to occur
    lengths = {sampler.first_step(e + 1) - sampler.first_step(e) for e in range(drawn)}
    assert lengths == set(arrays["number/cub_epoch_c_n_batches_distinct"][:, 2].tolist())


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [("redrawn_chunks", 13, r"^data\.batch_size=13: .*prime"), ("chunks", 120, "120 chunks")],
)
def test_impossible_batches(name: str, size: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sampled.build(name, size, 1)


def test_one_batch_may_hold_every_chunk_twice() -> None:
    """With one image per chunk, a class of n images has n + 1."""
    sampler = sampled.build("chunks", 2 * sum(size + 1 for size in SIZES), 1)
    assert sampler.first_step(1) == 1
    np.testing.assert_array_equal(np.bincount(LABELS[sampler.batch(0)]), [2 * (size + 1) for size in SIZES])


def test_small_classes_repeat_images() -> None:
    sampled.check_small_classes("chunks")
