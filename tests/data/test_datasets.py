"""Every data set is prepared from a miniature of its original distribution and loaded again, pixel
for pixel."""

import dataclasses
import io
import re
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dml_jax import seal
from dml_jax.config import Data, plugin_module
from dml_jax.console import Console
from dml_jax.data import decode, duplicates, formats, official, preparation, prepared_data, transforms
from dml_jax.data import sources as source_files
from dml_jax.data.files import File
from dml_jax.data.split import Split, digest, subset
from dml_jax.errors import ConfigError, DataError
from dml_jax.train import experiment as experiments
from tests.data import layouts, pictures
from tests.train.experiments import small

OFFICIAL = {name: plugin_module("data", name).RECIPE for name in ("cub", "cars", "sop", "inshop", "omniglot")}


def prepare(name: str, sources: list[Path], output: Path, console: Console | None = None, **overrides: object) -> None:
    recipe = overrides.pop("recipe", None) or plugin_module("data", name).RECIPE
    options = {"subset": True} | overrides
    request = preparation.Request(name=name, sources=tuple(sources), output=output, **options)  # type: ignore[arg-type]
    preparation.prepare(request, recipe, console or Console(active=False))


def load(name: str, path: Path) -> dict[str, Split]:
    return formats.load(Data(name=name, path=str(path)))


def counts(splits: dict[str, Split]) -> dict[str, tuple[int, int]]:
    return {name: (len(split.labels), len(set(split.labels.tolist()))) for name, split in splits.items()}


TWO = {"train": (4, 2), "test": (4, 2)}
BIRDS = {"train": (9, 3), "test": (6, 2)}, "101.White_Pelican"
PRODUCTS = {"train": (6, 3), "test": (6, 2)}, "11319"
SHOP = {"train": (4, 2), "test": (2, 2), "gallery": (3, 2)}, "id_00000001"
CARS = TWO, "099 FIAT 500 Abarth 2012"
# The sources; images and classes of each split; the first test class.
LAYOUTS: dict[str, tuple[Any, ...]] = {
    "cub": (layouts.cub, *BIRDS),
    "cub folders": (layouts.cub_folders, *BIRDS),
    "cub below others": (lambda p: layouts.cub_folders(p, "CUB_200_2011/images/"), *BIRDS),
    "sop": (layouts.sop, *PRODUCTS),
    "sop with other folders": (lambda p: layouts.sop(p, "Info_Files/", "images/"), *PRODUCTS),
    "inshop": (layouts.inshop, *SHOP),
    "inshop in high resolution": (lambda p: layouts.inshop(p, "img_highres"), *SHOP),
    "cars original": (layouts.cars_original, *CARS),
    "cars joined": (layouts.cars_joined, *CARS),
    "cars joined, with the devkit": (lambda p: [*layouts.cars_joined(p), layouts.cars_original(p)[2]], *CARS),
    "cars folders": (layouts.cars_folders, TWO, "FIAT 500 Abarth 2012"),
    "cars numbered": (lambda p: layouts.cars_folders(p, "{number:03d} {title}"), *CARS),
    "cars numbers": (lambda p: layouts.cars_folders(p, "{number}"), TWO, "099"),
    "omniglot": (layouts.omniglot, {"train": (8, 4), "test": (4, 2)}, "Tagalog/character01"),
    "folder": (lambda p: layouts.photos(p / "photos"), {"train": (6, 2), "test": (6, 2)}, "yew"),
}


@pytest.mark.parametrize("case", LAYOUTS)
def test_prepare_and_load(tmp_path: Path, case: str) -> None:
    """And the files are recognised as the data set that they are, and as no other; folders that are
    only numbers could be anything."""
    name, (make, expected, first_class) = case.split()[0], LAYOUTS[case]
    sources = make(tmp_path)
    sources = sources if isinstance(sources, list) else [sources]
    prepare(name, sources, tmp_path / "out")
    splits = load(name, tmp_path / "out")
    assert (counts(splits), splits["test"].classes[0]) == (expected, first_class)
    assert not set(splits["train"].classes) & set(splits["test"].classes)
    if "gallery" in splits:
        assert splits["gallery"].classes == splits["test"].classes
    assert {split.read(len(split.ids) - 1, None).dtype for split in splits.values()} == {np.dtype(np.uint8)}
    names = {prepared_data.INDEX, prepared_data.RECORDS, duplicates.TABLE, seal.MANIFEST}
    assert {path.name for path in (tmp_path / "out").iterdir()} == names
    seal.read(tmp_path / "out", prepared_data.KIND)
    unpacked = [
        source_files.unpack(source, tmp_path / f"{i}") if source.is_file() else source
        for i, source in enumerate(sources)
    ]
    files = source_files.list_files(unpacked).files
    recognised = [official for official, recipe in OFFICIAL.items() if recipe.matches(files)]
    assert recognised == ([] if case in ("folder", "cars numbers") else [name])


def test_archives_do_not_lead_elsewhere(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as zipped:
        zipped.writestr("../elsewhere.txt", "no")
    with tarfile.open(tmp_path / "x.tar", "w") as tarred:
        tarred.addfile(tarfile.TarInfo("../elsewhere.txt"))
    source_files.unpack(tmp_path / "x.zip", tmp_path / "unpacked")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["unpacked", "x.tar", "x.zip"]
    with pytest.raises(DataError, match=r"x\.tar: is truncated or damaged \(.*outside the dest"):
        source_files.unpack(tmp_path / "x.tar", tmp_path / "unpacked")


def test_of_several_copies_the_most_complete_counts(tmp_path: Path) -> None:
    """And of complete ones the one beside the table; copies of the table must be equal."""
    names = ["a/1.jpg", "a/2.jpg"]
    files = {name: File(Path(name)) for name in ("crops/a/1.jpg", "crops/a/2.jpg", "sop/a/2.jpg")}
    for copy in ("crops", "sop"):
        rows = [(name, "oak", "train") for name in names]
        entries = official.find_images(files, "sop/Ebay_train.txt", rows)
        assert [str(entry.file.path) for entry in entries] == [f"{copy}/{name}" for name in names]
        files["sop/a/1.jpg"] = File(Path("sop/a/1.jpg"))
    layouts.written(tmp_path, {"x/t.txt": b"1", "y/t.txt": b"1"})
    files = {name: File(tmp_path / name) for name in ("x/t.txt", "y/t.txt")}
    assert official.find_table(files, "t.txt", "") == "x/t.txt"
    (tmp_path / "y/t.txt").write_text("2")
    with pytest.raises(DataError, match=r"^x/t\.txt and y/t\.txt differ: give only"):
        official.find_table(files, "t.txt", "")


def test_missing_images_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And an error of a data set that is not a part of it."""
    root = layouts.sop(tmp_path).with_suffix("")
    for label in (1, 2, 11_319):
        (root / f"bicycle_final/{110_000_000_000 + label}_1.JPG").unlink()
    with pytest.raises(DataError, match=r"^--source=.*: 5 of 12 images cannot be used .* with --subset$"):
        prepare("sop", [root], tmp_path / "out", Console(), subset=False, recipe=OFFICIAL["sop"]._replace(counts=None))
    names = ", ".join(f"bicycle_final/{110_000_000_000 + label}_1.JPG" for label in (1, 2, 11_319))
    doubt, *lines = capsys.readouterr().out.splitlines()
    assert f": 25 % of the listed images (3) are missing, e.g. '{names.partition(',')[0]}'" in doubt
    assert lines[-1] == f"unusable: 3 images that are missing, e.g. {names}"
    prepare("sop", [root], tmp_path / "out", subset=True)
    assert counts(load("sop", tmp_path / "out")) == {"train": (4, 3), "test": (5, 2)}


@pytest.mark.parametrize("without", [3, 1])
def test_cars_without_test_labels_or_images(tmp_path: Path, capsys: pytest.CaptureFixture[str], without: int) -> None:
    """Half of Cars196 is labelled: both ways out are named, and --subset takes it."""
    sources = layouts.cars_original(tmp_path)
    del sources[without]
    missing = "cars_test/ is left out, because .* the classes are divided as in the papers"
    message = rf"^train has 2 images of .* 8054 of 98; {missing}; .*give all files, or --subset"
    with pytest.raises(DataError, match=message):
        prepare("cars", sources, tmp_path / "out", subset=False)
    prepare("cars", sources, tmp_path / "out", Console())
    assert re.search(f": {missing}\n", capsys.readouterr().out)
    names = [[*split.ids] for split in load("cars", tmp_path / "out").values()]
    assert names == [[f"cars_train/{i:05d}.jpg" for i in pair] for pair in ((0, 1), (2, 3))]


def test_class_folders_of_cars_have_the_numbers_of_the_devkit(tmp_path: Path) -> None:
    """Also where a title cannot be the name of a folder."""
    titles = layouts.TITLES.copy()
    titles[[5, 173]] = "Acura Integra Type R 2001", "Ram C/V Cargo Van Minivan 2012"
    (tmp_path / "cars_meta.mat").write_bytes(layouts.mat(class_names=titles))
    names = ("Acura Integra Type R 2001", "Ram C-V Cargo Van Minivan 2012")
    files = {"cars_meta.mat": File(tmp_path / "cars_meta.mat")} | {f"{name}/1.jpg": File(Path()) for name in names}
    entries = OFFICIAL["cars"].read(files).rows
    assert [(entry.split, entry.class_name) for entry in entries] == [
        ("train", "006 Acura Integra Type R 2001"),
        ("test", "174 Ram C/V Cargo Van Minivan 2012"),
    ]


def test_metadata_columns_follow_their_images(tmp_path: Path) -> None:
    """Into every split, also of validation, and into a subset."""
    labels = ("elm", "oak", "ash", "fir", "yew", "Öl bäume")
    names = dict(zip(labels, ("train", "train", "val", "val", "test", "test"), strict=True))
    layouts.photos(tmp_path / "images", tuple(names), each=2)
    rows = [
        f"images/{name}/{i}.jpg,{name},{split},shop of images/{name}/{i}.jpg,{i or ''}"
        for name, split in names.items()
        for i in (0, 1)
    ]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["path,label,split,shop,price", *rows]), encoding="utf-8-sig")
    prepare("csv", [table], tmp_path / "out")
    splits = load("csv", tmp_path / "out")
    assert counts(splits) == dict.fromkeys(("train", "validation", "test"), (4, 2))
    assert splits["test"].classes == ["yew", "Öl bäume"]
    for split in (*splits.values(), subset(splits["test"], np.array([1]))):
        assert split.metadata == {
            "shop": [f"shop of {path}" for path in split.ids],
            "price": [path[-5].replace("0", "") for path in split.ids],
        }
    about = prepared_data.read_about(tmp_path / "out") or {}
    assert "metadata: price, shop" in preparation.summary(about)


def test_a_data_set_with_a_validation_split_selects_on_it() -> None:
    digits = formats.load(Data())
    splits = digits | {"validation": subset(digits["test"], np.arange(3))}
    config = small(steps=1, select="validation")
    share = dataclasses.replace(config, data=dataclasses.replace(config.data, validation_share=0.2))
    for each in (config, share):
        assert experiments.build(each, dict(splits)).splits["validation"] is splits["validation"]
    with pytest.raises(ConfigError, match=r"needs a validation set; set data\.validation_share"):
        experiments.build(config, digits)


def test_unprepared_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    photos = layouts.photos(tmp_path / "photos")
    splits = load("folder", photos)
    assert counts(splits) == {"train": (6, 2), "test": (6, 2)}
    prepare("folder", [photos], tmp_path / "out")
    for name, split in load("folder", tmp_path / "out").items():
        assert list(split.ids) == list(splits[name].ids)
        np.testing.assert_array_equal(split.read(3, None), splits[name].read(3, None))
    (photos / "oak" / "1.jpg").write_bytes(b"nothing")
    left = load("folder", photos)
    assert sum(len(split.ids) for split in left.values()) == 11
    note = left["test"].note.splitlines()
    assert note[0].startswith("left out: oak/1.jpg: not an image")
    assert note[1:] == ["left out: 1 of 12 images"]
    for name in ("elm", "yew"):  # fewer than two classes are left for training or test
        for file in (photos / name).iterdir():
            file.write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"left out: 7 of 12 .*at least 2 of each are needed"):
        load("folder", photos)


def test_files_that_are_not_images_are_skipped_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Also when the result of the first reading is used."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    photos = layouts.photos(tmp_path / "photos")
    layouts.written(photos, {"oak/notes.txt": b"text", "README": b"text"})
    skipped = "skipped 2 files other than images (no suffix: 1, .txt: 1)"
    assert [load("folder", photos)["test"].note for _ in range(2)] == [f"data.path={photos}: {skipped}"] * 2
    prepare("folder", [photos], tmp_path / "out", console=Console())
    assert f"--source={photos}: {skipped}" in capsys.readouterr().out.splitlines()


def test_damage_after_preparation(tmp_path: Path) -> None:
    prepare("folder", [layouts.photos(tmp_path / "photos")], tmp_path / "out")
    with pytest.raises(DataError, match=r"contains the data set 'folder', but data\.name is 'cub'"):
        load("cub", tmp_path / "out")
    records = next((tmp_path / "out").rglob("*train.array_record*"))
    whole = records.read_bytes()
    index = tmp_path / "out" / prepared_data.INDEX
    names = index.read_bytes()
    index.write_bytes(names.replace(b"oak", b"elm"))
    with pytest.raises(DataError, match=f"^{index}: has changed since it was written; prepare the data set again"):
        load("folder", tmp_path / "out")
    index.write_bytes(names)
    records.write_bytes(whole[:-1])
    with pytest.raises(DataError, match="of the wrong size"):
        load("folder", tmp_path / "out")
    records.write_bytes(whole[:100] + bytes([whole[100] ^ 1]) + whole[101:])
    load("folder", tmp_path / "out")
    with pytest.raises(DataError, match="has changed since it was written"):
        seal.read(tmp_path / "out", prepared_data.KIND)
    manifest = tmp_path / "out" / seal.MANIFEST
    manifest.write_text(manifest.read_text()[:-5])
    with pytest.raises(DataError, match="damaged"):
        load("folder", tmp_path / "out")


def test_damaged_records_name_the_image(tmp_path: Path) -> None:
    """One flipped bit of an image, which array_record detects by its hash."""
    prepare("folder", [layouts.photos(tmp_path / "photos")], tmp_path / "out")
    records = next((tmp_path / "out").rglob("*train.array_record*"))
    content = bytearray(records.read_bytes())
    content[content.index(b"\xff\xd8\xff") + 200] ^= 1
    records.write_bytes(content)
    split = load("folder", tmp_path / "out")["train"]
    message = r"records, image \d of train: is truncated or damaged \(.*prepare the data"
    with pytest.raises(DataError, match=message):
        [split.read(i, None) for i in range(len(split.labels))]


def test_image_formats_are_kept_or_become_png(tmp_path: Path) -> None:
    def encode(data: bytes, short_side: int = 0, pixels: bool = False) -> bytes:
        return preparation.encode(data, decode.rgb(data), short_side, pixels)

    jpeg = pictures.encoded(0)
    assert encode(jpeg) == jpeg
    png = pictures.encoded(0, kind="PNG")
    assert encode(png) == png
    for mode, kind in (("RGBA", "PNG"), ("P", "PNG"), ("CMYK", "JPEG"), ("RGB", "BMP")):
        path = tmp_path / f"{mode}.{kind}"
        Image.fromarray(pictures.pixels(1)).convert(mode).save(path, kind)
        data = encode(path.read_bytes())
        assert data[1:4] == b"PNG"
        np.testing.assert_array_equal(decode.rgb(data), decode.rgb(path.read_bytes()))
    small = decode.rgb(encode(pictures.encoded(0, 60, 90), short_side=30))
    assert small.shape == (30, 45, 3)
    assert encode(jpeg, short_side=24) == jpeg
    raw = encode(pictures.encoded(0, 60, 90), short_side=30, pixels=True)
    np.testing.assert_array_equal(
        decode.rgb(raw), transforms.resize_shorter(decode.rgb(pictures.encoded(0, 60, 90)), 30)
    )
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(raw))), decode.rgb(raw))
    with pytest.raises(DataError, match="damaged"):
        decode.rgb(raw[:-1])


def test_data_hash_covers_the_prepared_pixels(tmp_path: Path) -> None:
    photos = layouts.photos(tmp_path / "photos")
    prepare("folder", [photos], tmp_path / "a")
    prepare("folder", [photos], tmp_path / "b")
    prepare("folder", [photos], tmp_path / "c", short_side=16)

    a, b, c = (digest(load("folder", tmp_path / name)) for name in "abc")
    assert a == b != c


def test_another_draw_is_of_the_data_set_of_the_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Images for a trained model are the test split of their own data set, or the same."""
    layouts.photos(tmp_path / "photos", [f"class {i}" for i in range(12)])
    own = tmp_path / "own"
    prepare("folder", [tmp_path / "photos"], own)
    usual = load("folder", own)["test"].classes
    drawn = Data(name="folder", path=str(own), class_split=1)
    elsewhere = dataclasses.replace(drawn, path=str(tmp_path / "other"))
    assert formats.load_labelled(own, elsewhere)["test"].classes == usual
    assert "own: is not the data set of the run, so its data.class_split" in capsys.readouterr().out
    assert formats.load_labelled(own, drawn)["test"].classes != usual
    assert capsys.readouterr().out == ""
