"""A catalogue of images: doubtful labels, near-duplicates, clusters, blurred and odd images, and
what changes do to them."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np

from dml_jax.analysis import changes, worth
from dml_jax.analysis.changes import TRASH, Change, Kind
from dml_jax.analysis.examined_images import Images
from dml_jax.errors import counted, listed, printable
from dml_jax.evaluation import doubtful_labels
from dml_jax.files import write_csv

SHOWN = 8  # images of a cluster that are shown
TABS = ("labels", "duplicates", "clusters", "blurred", "odd")


class Button(NamedTuple):
    """What a click does to images."""

    text: str
    change: Kind
    images: Sequence[int]
    to: str = ""  # the class; of "keep", the tab


class Group(NamedTuple):
    """Images that are shown together."""

    text: str
    images: Sequence[int]
    buttons: Sequence[Button]


class Tab(NamedTuple):
    """Groups, which are made when they are shown: one for each of `order`."""

    order: Sequence[int]
    group: Callable[[int], Group]


class Catalogue:
    """Images with the labels that changes give them.

    Args:
      original: the N labels of the images, "" if unknown.
      log: the changes.
    """

    def __init__(self, images: Images, original: Sequence[str], log: Sequence[Change] = ()):
        self.images, self.original, self.log = images, original, log
        self.folders = _class_folders(images.names, original)
        number = {name: i for i, name in enumerate(images.names)}
        self.labels, self.gone = list(original), np.zeros(len(original), bool)
        for name, change in changes.places(log).items():
            if (i := number.get(name)) is not None:
                self.gone[i] = change.to.startswith(f"./{TRASH}/")
                self.labels[i] = self.folders.get(_parent(change.to), self.labels[i])
        keep_clicks = [each for each in changes.standing(log) if each.change == "keep"]
        self.keep_clicks = {
            (each.to, number[each.image]) for each in keep_clicks if each.image in number
        }
        self.classes = sorted(set(self.labels) - {""})
        place = {name: i for i, name in enumerate(self.classes)}
        numbers = np.array([place.get(label, -1) for label in self.labels], np.int64)
        self.numbers = np.where(self.gone, -1, numbers)  # of the classes; -1 if there is none

    @cached_property
    def doubts(self) -> doubtful_labels.Doubts:
        """The doubts about the labels."""
        return doubtful_labels.find(self.images.spread, self.numbers)

    @cached_property
    def probability(self) -> Callable[[np.ndarray], np.ndarray] | None:
        """The probability of doubts, as fitted before any change."""
        return doubtful_labels.calibrate(self.images.spread, self.numbers, self.doubts.doubt)

    @cached_property
    def chances(self) -> np.ndarray:
        """The probability that each label is wrong; NaN if it is unknown."""
        doubt = self.doubts.doubt
        return self.probability(doubt) if self.probability else np.full(len(doubt), np.nan)

    def after(self, rows: Sequence[Change]) -> "Catalogue":
        """The catalogue after further changes. What a doubt means stays the same: whoever corrects
        the surest errors first leaves labels that no longer say how frequent errors are."""
        changed = Catalogue(self.images, self.original, [*self.log, *rows])
        changed.probability = self.probability
        return changed

    def tabs(self) -> dict[str, Tab]:
        """What is shown, the most important first."""
        doubt, sharp, far = self.doubts.doubt, self.images.sharpness, self.images.distances
        copies, clusters = self._groups("duplicates"), self._groups("clusters")
        mixed = sorted(clusters, key=lambda k: -self._strangers(clusters[k]))
        doubtful = [i for i in self._sorted("labels", -doubt) if doubt[i] > 0]
        blurred, odd = self._sorted("blurred", sharp), self._sorted("odd", -far)
        return {
            "labels": Tab(doubtful, self._doubtful),
            "duplicates": Tab([*copies], lambda k: self._copies(copies[k])),
            "clusters": Tab(mixed, lambda k: self._cluster(clusters[k])),
            "blurred": Tab(blurred, lambda i: self._one(i, "blurred", f"sharpness {sharp[i]:.0f}")),
            "odd": Tab(odd, lambda i: self._one(i, "odd", f"distance {far[i]:.2f}")),
        }

    def _shown(self, tab: str) -> np.ndarray:
        shown = ~self.gone
        shown[[i for where, i in self.keep_clicks if where == tab]] = False
        return shown

    def _sorted(self, tab: str, order: np.ndarray) -> list[int]:
        shown = self._shown(tab)
        return [i for i in np.argsort(order, kind="stable").tolist() if shown[i]]

    def _groups(self, tab: str) -> dict[int, list[int]]:
        """The positions of the images of each group of two or more, from group 1 on."""
        of = self.images.copies if tab == "duplicates" else self.images.clusters
        groups = np.where(self._shown(tab), of, 0)
        order = np.argsort(groups, kind="stable")
        parts = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)
        found = {int(groups[part[0]]): part.tolist() for part in parts if len(part) > 1}
        return {k: members for k, members in found.items() if k}

    def _doubtful(self, i: int) -> Group:
        to = self.classes[self.doubts.proposed[i]]
        of_class = np.flatnonzero(self.numbers == self.doubts.proposed[i])
        cosines = self.images.spread[of_class] @ self.images.spread[i]
        nearest = int(of_class[cosines.argmax()])
        percent = f" ({self.chances[i]:.0%})" if self.probability else ""
        buttons = [Button(f"move to {to}", "move", [i], to)] if self.folders else []
        buttons.append(Button("keep", "keep", [i], "labels"))
        return Group(f"{self.labels[i]} → {to}{percent}", [i, nearest], buttons)

    def _copies(self, members: Sequence[int]) -> Group:
        buttons = [
            Button(f"delete copy {k}", "delete", [i]) for k, i in enumerate(members[:SHOWN], 1)
        ]
        buttons.append(Button("keep", "keep", members, "duplicates"))
        return Group(self._summary(members), members, buttons)

    def _cluster(self, members: Sequence[int]) -> Group:
        """The image nearest to the mean first, then the best one of each class and those that
        differ most from the images before them."""
        rows = self.images.spread[members]
        gaps = np.linalg.norm(rows - rows.mean(axis=0), axis=1)
        best: dict[str, int] = {}
        for k in np.argsort(gaps, kind="stable").tolist():
            best.setdefault(self.labels[members[k]], k)
        sizes = Counter(self.labels[i] for i in members)
        first = int(gaps.argmin())
        picked = [first, *(best[name] for name, _ in sizes.most_common() if best[name] != first)]
        apart = np.stack([np.linalg.norm(rows - rows[k], axis=1) for k in picked]).min(axis=0)
        while len(picked) < min(SHOWN, len(members)):
            picked.append(int(apart.argmax()))
            apart = np.minimum(apart, np.linalg.norm(rows - rows[picked[-1]], axis=1))
        picked += [k for k in range(len(members)) if k not in picked]
        buttons = [Button("keep", "keep", members, "clusters")]
        into, label = ([name for name, _ in sizes.most_common(2)] * 2)[:2]
        of_class = [i for i in np.flatnonzero(~self.gone).tolist() if self.labels[i] == label]
        if self.folders and label != into and 2 * sizes[label] >= len(of_class):
            buttons.insert(0, Button(f"merge {label} into {into}", "merge", of_class, into))
        return Group(self._summary(members), [members[k] for k in picked], buttons)

    def _one(self, i: int, tab: str, text: str) -> Group:
        buttons = [Button("delete", "delete", [i]), Button("keep", "keep", [i], tab)]
        return Group(text, [i], buttons)

    def _strangers(self, members: Sequence[int]) -> int:
        """The number of images of other classes than the most frequent one."""
        return len(members) - max(Counter(self.labels[i] for i in members).values())

    def _summary(self, members: Sequence[int]) -> str:
        sizes = Counter(self.labels[i] for i in members if self.labels[i])
        names = listed([f"{n} {name}" for name, n in sizes.most_common()], 4)
        return counted(len(members), "image") + (f": {names}" if names else "")

    def changed(self, button: Button) -> list[Change]:
        """The rows of a click."""
        click = max((each.click for each in self.log), default=0) + 1
        occupied = {*self.images.names, *(each.to for each in self.log)}
        rows = []
        for i in button.images:
            name, to = self.images.names[i], button.to
            if button.change != "keep":
                to = self._free_place(name, to, occupied)
                occupied.add(to)
            rows.append(Change(click, button.change, name, self.images.sha256[i], to))
        return rows

    def undone(self, click: int) -> list[Change]:
        """The row that undoes a click."""
        return [Change(max(each.click for each in self.log) + 1, "undo", "", "", str(click))]

    def _free_place(self, name: str, label: str, occupied: set[str]) -> str:
        """A place that no file has, in a folder of a class or, without one, in the trash."""
        target = f"./{TRASH}/{name.removeprefix('./')}"
        if label:
            # The folder of the class that shares most with that of the image, e.g. its split.
            folders, own = [k for k in self.folders if self.folders[k] == label], _parent(name)
            nearest = max(folders, key=lambda each: len(os.path.commonpath([each, own])))
            target = f"{own if own in folders else nearest}/{PurePosixPath(name).name}"
        free, path, number = target, PurePosixPath(target), 1
        while free != name and (free in occupied or os.path.lexists(self.images.folder / free)):
            number += 1
            free = f"{_parent(target)}/{path.stem} ({number}){path.suffix}"
        return free

    @cached_property
    def worth(self) -> list[str]:
        """Sentences about what corrections and photographs would bring."""
        wrong = self._shown("labels") & (self.chances >= worth.LIKELY)
        images = self.images
        return worth.sentences(
            images.spread, self.numbers, self.classes, images.days, self.doubts, wrong
        )

    def write(self, file: Path) -> None:
        """Writes a table with a row for each image."""
        images, chances = self.images, self.chances
        proposals, shares = [""] * len(self.labels), [""] * len(self.labels)
        for i in np.flatnonzero(self.doubts.doubt > 0):
            proposals[i] = printable(self.classes[self.doubts.proposed[i]])
            shares[i] = f"{chances[i]:.3f}" if self.probability else ""
        columns = {
            "image": [printable(str(images.folder / name)) for name in images.names],
            "cluster": images.clusters,
            "near_duplicates": [group or "" for group in images.copies.tolist()],
            "class": list(map(printable, self.labels)),
            "proposed": proposals,
            "probability": shares,
            "sharpness": [f"{value:.1f}" for value in images.sharpness.tolist()],
            "nearest_distance": [f"{value:.4f}" for value in images.distances.tolist()],
        }
        write_csv(file, [list(columns), *zip(*columns.values(), strict=True)])


def _class_folders(names: Sequence[str], labels: Sequence[str]) -> dict[str, str]:
    """The class of each folder; none if a folder has images of several classes."""
    found: dict[str, str] = {}
    for name, label in zip(names, labels, strict=True):
        if not label or found.setdefault(_parent(name), label) != label:
            return {}
    return found


def _parent(name: str) -> str:
    """The folder of "./path"."""
    return name.rpartition("/")[0]
