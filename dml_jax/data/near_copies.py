"""Near-copies among images: compressed, resized, grey or slightly cropped copies of one picture.

Candidates are the nearest neighbours of the low frequencies (discrete cosine transform) of grey
thumbnails and of their centres in a k-d tree: a few for each image, whatever its background. Each
candidate is aligned by shift and scale (Lucas & Kanade 1981), and must agree in every part.
"""

import numpy as np
from PIL import Image
from scipy.fft import dctn
from scipy.spatial import KDTree

SIDE = 32  # pixels of a thumbnail
CROPS = (0.0, 0.025, 0.05)  # shares cut off on every side before thumbnails are compared
FREQUENCIES = 4  # in each direction
NEIGHBORS = 4  # of each thumbnail, one of which may be itself
FAR = 0.05  # squared distance of unit vectors of frequencies, beyond which no image is a copy
FLAT = 3.0  # standard deviation of grey levels; less has too little structure to be compared
ALIKE = 0.98  # least correlation after alignment; before, `ROUGHLY`
ROUGHLY = 0.75
DIFFERENT = 0.5  # most squared difference in a block of 8 x 8, as a share of its variance
BRIGHTER, CONTRASTS = 4.0, (0.95, 1.12)  # most difference of means in levels, ratio of deviations
PARTS, GREY = 4, 2.0  # parts of an image whose colours are compared; less colour is none
TINTED = 0.35  # most difference of the colours, as a share of them
NARROWER = 0.08  # most difference of the scales of height and width
STEPS = 4  # of the alignment
CHUNK = 512  # pairs that are aligned at a time


def thumbnail(pixels: np.ndarray) -> np.ndarray:
    """The brightness of an image uint8 [H, W, 3] in `SIDE` x `SIDE` areas, and the colours of
    `PARTS` x `PARTS`: uint8 [SIDE^2 + 3 PARTS^2]."""
    small = Image.fromarray(pixels).resize((SIDE, SIDE), Image.Resampling.BOX)
    colours = small.resize((PARTS, PARTS), Image.Resampling.BOX)
    return np.concatenate([np.asarray(each).ravel() for each in (small.convert("L"), colours)])


def find_copies(thumbnails: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Near-copies among images by their thumbnails, uint8 [N, D].

    Returns the group of each image, int [N], and pairs of groups that are near-copies, int [P, 2].
    The images of a group have the same thumbnail. A flat image is a group by itself.
    """
    flat = thumbnails[:, : SIDE**2].std(axis=1) < FLAT
    marks = np.where(flat, np.arange(1, len(flat) + 1), 0).astype("<u4")
    marked = np.concatenate([thumbnails, marks[:, None].view(np.uint8)], axis=1)
    _, firsts, group = np.unique(marked, axis=0, return_index=True, return_inverse=True)
    group, structured = group.ravel(), np.flatnonzero(~flat[firsts])
    grey, colours = np.split(thumbnails[firsts[structured]].astype(np.float32), [SIDE**2], axis=1)
    images = grey.reshape(-1, SIDE, SIDE)
    colours = colours.reshape(len(colours), PARTS**2, 3)
    colours = colours - colours.mean(axis=2, keepdims=True)
    colourful = np.abs(colours).mean(axis=(1, 2))
    copies = [np.zeros((0, 2), np.int64)]
    if len(images) < 2:
        return group, copies[0]
    tree = KDTree(_frequencies(images))
    for crop in CROPS:
        centres = _cropped(images, crop)
        options = {"k": NEIGHBORS, "eps": 0.5, "distance_upper_bound": FAR**0.5, "workers": -1}
        _, near = tree.query(_frequencies(centres), **options)
        pairs = np.stack([np.repeat(np.arange(len(images)), NEIGHBORS), near.ravel()], axis=1)
        pairs = pairs[(pairs[:, 1] < len(images)) & (pairs[:, 0] != pairs[:, 1])]
        for start in range(0, len(pairs), CHUNK):
            pair = pairs[start : start + CHUNK]
            change = np.abs(colours[pair[:, 0]] - colours[pair[:, 1]]).mean(axis=(1, 2))
            grey_copy = (colourful[pair] < GREY).any(axis=1)
            pair = pair[grey_copy | (change < TINTED * colourful[pair].max(axis=1))]
            pair = pair[_roughly(centres[pair[:, 0]], images[pair[:, 1]])]
            copies.append(pair[_same(images[pair[:, 0]], images[pair[:, 1]], crop)])
    pairs = np.unique(np.sort(np.concatenate(copies), axis=1), axis=0)
    return group, structured[pairs]


def _frequencies(images: np.ndarray) -> np.ndarray:
    """Unit vectors of the lowest frequencies but the mean, of images float32 [N, SIDE, SIDE]."""
    small = images.reshape(len(images), 8, SIDE // 8, 8, SIDE // 8).mean(axis=(2, 4))
    frequencies = dctn(small, axes=(1, 2), norm="ortho")[:, :FREQUENCIES, :FREQUENCIES]
    rows = frequencies.reshape(len(images), -1)[:, 1:]
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-6)


def _cropped(images: np.ndarray, crop: float) -> np.ndarray:
    none, scale = np.zeros(len(images)), np.full(len(images), 1 - 2 * crop)
    return _sampled(_sampled(images, none, scale).swapaxes(1, 2), none, scale).swapaxes(1, 2)


def _sampled(images: np.ndarray, shift: np.ndarray, scale: np.ndarray) -> np.ndarray:
    """Images whose rows are scaled about the centre by `scale` [N] and moved by `shift` [N], by
    linear interpolation."""
    middle = (SIDE - 1) / 2
    at = scale[:, None] * (np.arange(SIDE) - middle) + shift[:, None] + middle
    at = np.clip(at, 0, SIDE - 1.001)
    low = at.astype(int)
    share, image = (at - low).astype(np.float32)[:, :, None], np.arange(len(images))[:, None]
    return images[image, low] * (1 - share) + images[image, low + 1] * share


def _same(whole: np.ndarray, part: np.ndarray, crop: float) -> np.ndarray:
    """Whether images `part` are near-copies of centres of images `whole`, float32 [N, SIDE, SIDE],
    without about `crop` on every side: bool [N]."""
    whole, part = _blurred(whole), _blurred(part)
    count, position = len(whole), np.arange(SIDE) - (SIDE - 1) / 2
    shifts, scales = np.zeros((2, count)), np.full((2, count), 1 - 2 * crop)
    for step in range(STEPS + 1):
        rows = _sampled(whole, shifts[0], scales[0])
        seen = _sampled(rows.swapaxes(1, 2), shifts[1], scales[1]).swapaxes(1, 2)
        if step == STEPS:
            break
        # Least squares: part = gain * (seen + its derivatives * changes) + offset.
        down, across = np.gradient(seen, axis=(1, 2))
        down, across = down / scales[0, :, None, None], across / scales[1, :, None, None]
        moves = [down, across, down * position[:, None], across * position]
        columns = np.stack([*moves, seen, np.ones_like(seen)], axis=-1).reshape(count, SIDE**2, 6)
        transposed = columns.swapaxes(1, 2)
        normal = transposed @ columns + 1e-3 * np.eye(6)
        solved = np.linalg.solve(normal, transposed @ part.reshape(count, SIDE**2, 1))[:, :, 0].T
        changes = solved[:4] / np.where(np.abs(solved[4]) < 0.2, 1, solved[4])
        scales = np.clip(scales + np.clip(changes[2:], -0.1, 0.1), 0.85, 1.02)
        room = np.maximum(1 - scales, 0) * SIDE / 2 + 0.5
        shifts = np.clip(shifts + np.clip(changes[:2], -2, 2), -room, room)
    one, other = _standard(seen), _standard(part)
    blocks = (len(one), 4, SIDE // 4, 4, SIDE // 4)
    difference = ((one - other) ** 2).reshape(blocks).mean(axis=(2, 4))
    variance = np.maximum(*(each.reshape(blocks).std(axis=(2, 4)) for each in (one, other))) ** 2
    return (
        _roughly(seen, part, ALIKE)
        & (difference / np.maximum(variance, 0.02) < DIFFERENT).all(axis=(1, 2))
        & (np.abs(scales[0] - scales[1]) < NARROWER)
    )


def _roughly(seen: np.ndarray, part: np.ndarray, alike: float = ROUGHLY) -> np.ndarray:
    """Whether images float32 [N, SIDE, SIDE] correlate and are as bright and contrasting: [N]."""
    correlation = (_standard(seen) * _standard(part)).mean(axis=(1, 2))
    brighter = np.abs(seen.mean(axis=(1, 2)) - part.mean(axis=(1, 2)))
    contrast = part.std(axis=(1, 2)) / np.maximum(seen.std(axis=(1, 2)), 1e-6)
    wide = 2 * (alike == ROUGHLY) + 1  # not yet aligned
    few, many = CONTRASTS
    fits = (contrast > few - 0.02 * wide) & (contrast < many + 0.02 * wide)
    return (correlation >= alike) & (brighter < BRIGHTER * wide) & fits


def _standard(images: np.ndarray) -> np.ndarray:
    """Images with mean 0 and standard deviation 1."""
    centred = images - images.mean(axis=(1, 2), keepdims=True)
    return centred / np.maximum(centred.std(axis=(1, 2), keepdims=True), 1e-6)


def _blurred(images: np.ndarray) -> np.ndarray:
    wide = np.pad(images, ((0, 0), (1, 1), (1, 1)), mode="edge")
    tall = (wide[:, :-2] + 2 * wide[:, 1:-1] + wide[:, 2:]) / 4
    return (tall[:, :, :-2] + 2 * tall[:, :, 1:-1] + tall[:, :, 2:]) / 4
