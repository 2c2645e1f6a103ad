"""Miniatures of the original distributions of the data sets: their structure with a few small
images."""

import io
import itertools
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from scipy.io import savemat

from tests.data import pictures

BIRDS = {1: "Black_footed_Albatross", 2: "Laysan_Albatross", 100: "Brown_Pelican"}
BIRDS |= {101: "White_Pelican", 200: "Yellowthroat"}
CARS = {
    1: "AM General Hummer SUV 2000",
    98: "Eagle Talon Hatchback 1998",
    99: "FIAT 500 Abarth 2012",
    196: "smart fortwo Convertible 2012",
}


def written(root: Path, files: Mapping[str, bytes]) -> Path:
    """Writes files below a folder."""
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(content)
    return root


def packed(root: Path, files: Mapping[str, bytes], kind: str = "gztar") -> Path:
    """Writes files below a folder and packs it; the archive lies beside the folder."""
    written(root, files)
    return Path(shutil.make_archive(str(root), kind, root.parent, root.name))


def lines(rows: list[str]) -> bytes:
    return "".join(f"{row}\n" for row in rows).encode()


def cub(folder: Path) -> Path:
    """CUB_200_2011.tar.gz: train 9 images of 3 classes, test 6 of 2."""
    files = cub_images("images/")
    names = [name.removeprefix("images/") for name in files]
    files["images.txt"] = lines([f"{i} {name}" for i, name in enumerate(names)])
    files["image_class_labels.txt"] = lines([f"{i} {int(name[:3])}" for i, name in enumerate(names)])
    return packed(folder / "CUB_200_2011", files)


def cub_images(base: str) -> dict[str, bytes]:
    names = [f"{base}{n:03d}.{title}/{title}_{i:04d}.jpg" for n, title in BIRDS.items() for i in range(3)]
    return {name: pictures.encoded(i) for i, name in enumerate(names)}


def cub_folders(folder: Path, base: str = "") -> Path:
    """Only the class folders of CUB, below any folder."""
    return written(folder / "birds", cub_images(base))


def sop(folder: Path, tables: str = "", images: str = "") -> Path:
    """Stanford_Online_Products.zip: train 6 images of 3 classes, test 6 of 2; tables and images in
    any folders."""
    files, number = {}, itertools.count(1)
    for split, classes, each in (("train", (1, 2, 3), 2), ("test", (11_319, 11_320), 3)):
        rows = ["image_id class_id super_class_id path"]
        for label, i in itertools.product(classes, range(each)):
            path = f"bicycle_final/{110_000_000_000 + label}_{i}.JPG"
            rows.append(f"{next(number)} {label} 1 {path}")
            files[f"{images}{path}"] = pictures.encoded(len(files))
        files[f"{tables}Ebay_{split}.txt"] = lines(rows)
    return packed(folder / "Stanford_Online_Products", files, "zip")


def inshop(folder: Path, images: str = "img") -> list[Path]:
    """A folder with Eval/, and Img/img.zip in it: train 4 images of 2 classes, query 2 of 2,
    gallery 3 of 2."""
    items = [("train", 2)] * 2 + [("train", 7)] * 2 + [("query", 1), ("gallery", 1), ("gallery", 1)]
    items += [("query", 80), ("gallery", 80)]
    names = [f"img/WOMEN/id_{item:08d}/{i:02d}_1_front.jpg" for i, (_, item) in enumerate(items)]
    rows = [f"{name}  id_{n:08d}  {s}" for name, (s, n) in zip(names, items, strict=True)]
    table = lines([str(len(rows)), "image_name item_id evaluation_status", *rows])
    root = written(folder / "In-shop Clothes Retrieval Benchmark", {"Eval/list_eval_partition.txt": table})
    files = {name.removeprefix("img/"): pictures.encoded(i, 32, 24) for i, name in enumerate(names)}
    archive = packed(root / "Img" / images, files, "zip")
    shutil.rmtree(root / "Img" / images)
    return [root, archive]


def mat(**content: Any) -> bytes:
    file = io.BytesIO()
    savemat(file, content)
    return file.getvalue()


def annotations(rows: Mapping[str, int], name: str) -> np.ndarray:
    kinds = [("bbox_x1", "O"), ("class", "O"), (name, "O"), ("test", "O")]
    return np.array([(np.uint8(1), np.uint8(label), path, np.uint8(0)) for path, label in rows.items()], dtype=kinds)


TITLES = np.array([CARS.get(i, f"Model {i}") for i in range(1, 197)], dtype=object)


def cars_original(folder: Path) -> list[Path]:
    """Archives of cars_train, cars_test and the devkit, and the test labels: 4 images of 2 classes
    in each split."""
    rows = {f"{i:05d}.jpg": label for i, label in enumerate(CARS)}
    labels = mat(annotations=annotations(rows, "fname"))
    images = {name: pictures.encoded(i) for i, name in enumerate(rows)}
    return [
        packed(folder / "cars_train", images),
        packed(folder / "cars_test", images),
        packed(folder / "devkit", {"cars_train_annos.mat": labels, "cars_meta.mat": mat(class_names=TITLES)}),
        written(folder / "more", {"cars_test_annos_withlabels.mat": labels}),
    ]


def cars_joined(folder: Path) -> list[Path]:
    """An archive of car_ims, and cars_annos.mat: 4 images of 2 classes in each split."""
    rows = {f"car_ims/{i:06d}.jpg": label for i, label in enumerate([*CARS, *CARS])}
    table = mat(annotations=annotations(rows, "relative_im_path"), class_names=TITLES)
    images = {name.removeprefix("car_ims/"): pictures.encoded(i) for i, name in enumerate(rows)}
    return [written(folder / "cars", {"cars_annos.mat": table}), packed(folder / "car_ims", images)]


def cars_folders(folder: Path, name: str = "{title}") -> list[Path]:
    """car_data/train and car_data/test with one folder per class: 4 images of 2 classes in each
    split."""
    labels = [name.format(number=number, title=title) for number, title in CARS.items()]
    names = [f"{split}/{label}/{split}.jpg" for split in ("train", "test") for label in labels]
    return [written(folder / "car_data", {name: pictures.encoded(i) for i, name in enumerate(names)})]


def cars_kaggle(folder: Path) -> list[Path]:
    """cars_train/cars_train and cars_test/cars_test, with the table of car_ims, which numbers the
    images otherwise."""
    table = mat(annotations=annotations({f"car_ims/{i:06d}.jpg": 1 for i in range(1, 9)}, "relative_im_path"))
    names = [f"cars_{part}/cars_{part}/{i:05d}.jpg" for part in ("train", "test") for i in range(1, 5)]
    images = {name: pictures.encoded(i) for i, name in enumerate(names)}
    return [written(folder / "archive", {"cars_annos.mat": table} | images)]


def omniglot(folder: Path) -> list[Path]:
    """Archives of the two small background sets, which share the alphabet Greek: train 8 of 4, test
    4 of 2."""
    number, archives = itertools.count(600), []
    for part, alphabets in (("small1", ("Greek", "Korean")), ("small2", ("Greek", "Tagalog"))):
        names = [f"{a}/character0{c}/0001_0{i}.png" for a in alphabets for c in (1, 2) for i in (1, 2)]
        files = {name: pictures.encoded(next(number), kind="PNG") for name in names}
        archives.append(packed(folder / f"images_background_{part}", files, "zip"))
    return archives


def photos(
    folder: Path, classes: tuple[str, ...] = ("elm", "oak", "Öl bäume", "yew"), each: int = 3, seed: int = 700
) -> Path:
    """A folder of class folders."""
    for c, label in enumerate(classes):
        for i in range(each):
            pictures.write(folder / label / f"{i}.jpg", seed + 10 * c + i, 24 + i, 32)
    return folder
