"""Miniatures of the original distributions of the data sets: their structure with a few small images."""

import tarfile
import zipfile
from pathlib import Path

import numpy as np
from scipy.io import savemat

from tests.data import pictures

BIRDS = {
    1: "Black_footed_Albatross",
    2: "Laysan_Albatross",
    100: "Brown_Pelican",
    101: "White_Pelican",
    200: "Yellowthroat",
}
CARS = {
    1: "AM General Hummer SUV 2000",
    98: "Dodge Charger SRT-8 2009",
    99: "Eagle Talon 1998",
    196: "smart fortwo 2012",
}


def cub(folder: Path) -> Path:
    """CUB_200_2011.tgz: train 9 images of 3 classes, test 6 of 2."""
    root = folder / "CUB_200_2011"
    images, labels, number = [], [], 0
    for label, title in BIRDS.items():
        for i in range(3):
            number += 1
            name = f"{label:03d}.{title}/{title}_{i:04d}_{number}.jpg"
            pictures.write(root / "images" / name, number)
            images.append(f"{number} {name}")
            labels.append(f"{number} {label}")
    (root / "images.txt").write_text("\n".join(images) + "\n")
    (root / "image_class_labels.txt").write_text("\n".join(labels) + "\n")
    (root / "README").write_text("birds")
    archive = folder / "CUB_200_2011.tgz"
    with tarfile.open(archive, "w:gz") as file:
        file.add(root, "CUB_200_2011")
    return archive


def sop(folder: Path) -> Path:
    """Stanford_Online_Products.zip: train 6 images of 3 classes, test 6 of 2."""
    header, number = "image_id class_id super_class_id path", 0
    archive = folder / "Stanford_Online_Products.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for split, classes, each in (("train", (1, 2, 3), 2), ("test", (11_319, 11_320), 3)):
            rows = [header]
            for label in classes:
                for i in range(each):
                    number += 1
                    path = f"bicycle_final/{110_000_000_000 + label}_{i}.JPG"
                    rows.append(f"{number} {label} 1 {path}")
                    file.writestr(f"Stanford_Online_Products/{path}", pictures.encoded(100 + number))
            file.writestr(f"Stanford_Online_Products/Ebay_{split}.txt", "\n".join(rows) + "\n")
    return archive


def inshop(folder: Path) -> Path:
    """A folder with Eval/ and the nested Img/img.zip: train 4 images of 2 classes, query 2 of 2, gallery 3 of 2."""
    root = folder / "In-shop Clothes Retrieval Benchmark"
    (root / "Eval").mkdir(parents=True)
    (root / "Img").mkdir()
    items = [
        ("train", 2, 2),
        ("train", 7, 2),
        ("query", 1, 1),
        ("gallery", 1, 2),
        ("query", 80, 1),
        ("gallery", 80, 1),
    ]
    rows, number = [], 0
    with zipfile.ZipFile(root / "Img" / "img.zip", "w") as file:
        for status, item, count in items:
            for _ in range(count):
                number += 1
                name = f"img/WOMEN/Dresses/id_{item:08d}/{number:02d}_1_front.jpg"
                rows.append(f"{name}    id_{item:08d}    {status}")
                file.writestr(name, pictures.encoded(200 + number, 32, 24))
    table = [str(len(rows)), "image_name item_id evaluation_status", *rows]
    (root / "Eval" / "list_eval_partition.txt").write_text("\n".join(table) + "\n")
    return root


def _annotations(rows: list[tuple[str, int]], name: str) -> np.ndarray:
    kinds = [("bbox_x1", "O"), ("class", "O"), (name, "O"), ("test", "O")]
    return np.array([(np.uint8(1), np.uint8(label), path, np.uint8(0)) for path, label in rows], dtype=kinds)


def _titles() -> np.ndarray:
    titles = np.array([f"Model {i}" for i in range(1, 197)], dtype=object)
    for number, title in CARS.items():
        titles[number - 1] = title
    return titles


def inshop_sources(folder: Path) -> list[Path]:
    """The folder of `inshop` and the archive in it."""
    root = inshop(folder)
    return [root, root / "Img" / "img.zip"]


def cars_original(folder: Path) -> list[Path]:
    """cars_train.tgz, cars_test.tgz, car_devkit.tgz and the test labels: 4 images of 2 classes in each split."""
    tables, archives, number = {}, [], 0
    for part in ("train", "test"):
        rows = []
        with tarfile.open(folder / f"cars_{part}.tgz", "w:gz") as file:
            for i, label in enumerate(CARS, start=1):
                number += 1
                name = f"{i:05d}.jpg"
                rows.append((name, label))
                file.add(pictures.write(folder / "unused" / part / name, 300 + number), f"cars_{part}/{name}")
        tables[part] = _annotations(rows, "fname")
        archives.append(folder / f"cars_{part}.tgz")
    (folder / "devkit").mkdir()
    savemat(folder / "devkit" / "cars_train_annos.mat", {"annotations": tables["train"]})
    savemat(folder / "devkit" / "cars_meta.mat", {"class_names": _titles()})
    with tarfile.open(folder / "car_devkit.tgz", "w:gz") as file:
        file.add(folder / "devkit", "devkit")
    kit = folder / "more"
    kit.mkdir()
    savemat(kit / "cars_test_annos_withlabels.mat", {"annotations": tables["test"]})
    return [*archives, folder / "car_devkit.tgz", kit]


def cars_joined(folder: Path) -> list[Path]:
    """A folder with car_ims.tgz and cars_annos.mat: 4 images of 2 classes in each split."""
    root = folder / "cars"
    root.mkdir()
    rows = []
    with tarfile.open(root / "car_ims.tgz", "w:gz") as file:
        for i, label in enumerate([*CARS, *CARS], start=1):
            name = f"car_ims/{i:06d}.jpg"
            rows.append((name, label))
            file.add(pictures.write(folder / "unused" / name, 400 + i), name)
    content = {"annotations": _annotations(rows, "relative_im_path"), "class_names": _titles()}
    savemat(root / "cars_annos.mat", content)
    return [root]


def cars_folders(folder: Path) -> list[Path]:
    """car_data/train and car_data/test with one folder per class: 4 images of 2 classes in each split."""
    for split in ("train", "test"):
        for i, title in enumerate(CARS.values()):
            pictures.write(folder / "car_data" / split / title / f"{split}_{i}.jpg", 500 + i + 10 * len(split))
    return [folder / "car_data"]


def omniglot(folder: Path) -> list[Path]:
    """Archives of the two small background sets, which share the alphabet Greek: train 8 of 4, test 4 of 2."""
    archives, number = [], 0
    for part, alphabets in (("small1", ("Greek", "Korean")), ("small2", ("Greek", "Tagalog"))):
        archives.append(folder / f"images_background_{part}.zip")
        with zipfile.ZipFile(archives[-1], "w") as file:
            for alphabet in alphabets:
                for character in (1, 2):
                    for drawing in (1, 2):
                        number += 1
                        name = f"{alphabet}/character{character:02d}/{number:04d}_{drawing:02d}.png"
                        file.writestr(f"images_background_{part}/{name}", pictures.encoded(600 + number, kind="PNG"))
    return archives


def photos(
    folder: Path, classes: tuple[str, ...] = ("elm", "oak", "Öl bäume", "yew"), each: int = 3, seed: int = 700
) -> Path:
    """A folder of class folders."""
    for c, label in enumerate(classes):
        for i in range(each):
            pictures.write(folder / label / f"{i}.jpg", seed + 10 * c + i, 24 + i, 32)
    return folder
