"""Pairs of equal and nearly equal images in a data set, as `prepare` lists them."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np

from dml_jax.data import near_copies
from dml_jax.data.checked_images import Facts
from dml_jax.data.files import Entry

TABLE = "duplicates.csv"
KINDS = ("duplicates", "near duplicates")  # equal pixels; see `near_copies`
PLACES = ("within a class", "across classes", "across splits", "across splits and classes")

Group = tuple[str, str]  # split and class


def find_duplicates(
    entries: Sequence[Entry], facts: Sequence[Facts]
) -> list[tuple[str, str, str, str]]:
    """Rows of kind, place and both names, the most harmful first.

    Each image is paired with the first similar one in each place.
    """
    groups = [(entry.split, entry.class_name) for entry in entries]
    _, equal = np.unique([fact.pixels.hex() for fact in facts], return_inverse=True)
    alike, near = near_copies.find_copies(np.stack([fact.thumbnail for fact in facts]))
    pairs = _pairs(alike.tolist(), near.tolist(), groups) | _pairs(equal.tolist(), (), groups)
    rows = sorted(
        (-_place(groups[i], groups[j]), bool(equal[i] != equal[j]), i, j) for i, j in pairs
    )
    return [
        (KINDS[near], PLACES[-place], entries[i].id, entries[j].id) for place, near, i, j in rows
    ]


def _place(one: Group, other: Group) -> int:
    return 2 * (one[0] != other[0]) + (one[1] != other[1])


def _pairs(
    sets: Sequence[int], near: Iterable[Sequence[int]], groups: Sequence[Group]
) -> set[tuple[int, int]]:
    """Pairs of images that are in one set, or in sets that are `near`.

    Each image is paired with the first one in every place, because all pairs of a repeated image
    could be billions.
    """
    firsts = defaultdict[int, dict[Group, list[int]]](dict)  # set -> the first two of each group
    for i, (which, group) in enumerate(zip(sets, groups, strict=True)):
        members = firsts[which].setdefault(group, [])
        members += [i] if len(members) < 2 else []
    neighbors = {which: [which] for which in firsts}
    for one, other in near:
        neighbors[one].append(other)
        neighbors[other].append(one)
    pairs = set[tuple[int, int]]()
    for i, group in enumerate(groups):
        partners = dict[int, int]()  # place -> the first similar image
        for which in neighbors[sets[i]]:
            for other_group, members in firsts[which].items():
                for j in [j for j in members if j != i][:1]:
                    place = _place(group, other_group)
                    partners[place] = min(j, partners.get(place, j))
        pairs |= {(min(i, j), max(i, j)) for j in partners.values()}
    return pairs
