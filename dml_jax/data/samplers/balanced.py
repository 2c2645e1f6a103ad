"""Class-balanced batches that treat classes and images evenly at every step, not only on average."""

from collections.abc import Callable
from math import ceil, gcd

import numpy as np

from dml_jax.config import Data
from dml_jax.data.samplers.base import CLASSES, IMAGES, Cached, Sampler, by_step, distinct_classes


def dealer(seed: int, stream: int, sizes: list[int], hand: int) -> Callable[[int, int, int], np.ndarray]:
    """Deals hands from shuffled packs, one pack after the other: a card comes again only when all have come.

    A hand holds no card twice before it holds them all: where it begins in one pack and goes on in the next, the next
    pack's first cards are chosen among those that the hand does not hold yet.

    Args:
      seed, stream: of the random numbers.
      sizes: cards in a pack of each kind.
      hand: cards dealt at once.

    Returns:
      (kind, position, count) -> int [count], successive cards of that kind's endless row of packs.
    """

    def shuffled_pack(kind: int, number: int) -> np.ndarray:
        order = np.random.default_rng((seed, stream, kind, number)).permutation(sizes[kind]).astype(np.int32)
        held = number * sizes[kind] % hand  # cards that the pack before gave to this pack's first hand
        if held == 0 or held >= sizes[kind]:
            return order
        free = ~np.isin(order, pack(kind, number - 1)[-held:])
        first = np.flatnonzero(free)[: hand - held]
        return np.concatenate([order[first], np.delete(order, first)])

    pack = Cached(shuffled_pack, hand + 4 * len(sizes))

    def cards(kind: int, position: int, count: int) -> np.ndarray:
        first, last = position // sizes[kind], (position + count - 1) // sizes[kind]
        cycle = hand // gcd(hand, sizes[kind])  # packs until a hand begins with a pack again
        for number in range(first - first % cycle, first):
            pack(kind, number)  # each depends on the one before: in this order none has to recurse deeply
        row = np.concatenate([pack(kind, number) for number in range(first, last + 1)])
        return row[position - first * sizes[kind] :][:count]

    return cards


def balanced(data: Data, members: list[np.ndarray], seed: int) -> Sampler:
    """P classes times K images: a class comes again when all have come, an image when its class is used up.

    At any step the numbers of times two classes have come differ by at most one, and so do those of two images of a
    class. An epoch has as many steps as the split has batches, and at least enough for all classes to come.
    """
    images, classes, total = data.images_per_class, len(members), sum(map(len, members))
    chosen = distinct_classes(data, members)
    deal_class = dealer(seed, CLASSES, [classes], chosen)
    deal_image = dealer(seed, IMAGES, [len(m) for m in members], images)

    def batch(step: int) -> np.ndarray:
        position = step * chosen
        drawn = deal_class(0, position, chosen).tolist()
        times = [(position + i) // classes for i in range(chosen)]  # that the class has come before
        return np.concatenate(
            [members[c][deal_image(c, t * images, images)] for c, t in zip(drawn, times, strict=True)]
        )

    return by_step(batch, max(total // data.batch_size, ceil(classes / chosen)))
