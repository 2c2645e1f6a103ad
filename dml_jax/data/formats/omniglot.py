"""Omniglot: characters of many alphabets, each drawn by twenty people; alphabets are disjoint.

Either the full sets, images_background and images_evaluation, or the two small background sets. The
second small set repeats two alphabets of the first, which are left out of the test split.
"""

from dml_jax.data.files import Entry, Files
from dml_jax.data.sources import AUTO, Options, Recipe, Table
from dml_jax.errors import DataError
from dml_jax.remote.downloads import Download

PAIRS = (
    ("images_background", "images_evaluation"),
    ("images_background_small1", "images_background_small2"),
)
REPOSITORY = "https://github.com/brendenlake/omniglot"


def read(files: Files, options: Options = AUTO) -> Table:
    """Finds the images <set>/<alphabet>/<character>/<drawing>.png."""
    drawings: dict[str, list[tuple[str, str, str]]] = {}
    for path in files:
        if path.endswith(".png") and path.count("/") >= 3:
            _, part, alphabet, character, _ = f"/{path}".rsplit("/", 4)
            drawings.setdefault(part, []).append((path, alphabet, character))
    pair = next((pair for pair in PAIRS if set(pair) <= set(drawings)), None)
    if pair is None:
        needed = " or ".join(map(" and ".join, PAIRS))
        found = ", ".join(sorted(drawings)) or "nothing"
        raise DataError(f"found {found} of Omniglot; needed are {needed}")
    trained = {alphabet for _, alphabet, _ in drawings[pair[0]]}
    entries = []
    for split, part in zip(("train", "test"), pair, strict=True):
        for path, alphabet, character in drawings[part]:
            if split == "train" or alphabet not in trained:
                label = f"{alphabet}/{character}"
                name = f"{label}/{path.rsplit('/', 1)[1]}"
                entries.append(Entry(name, files[path], label, split))
    return Table(entries)


def matches(files: Files) -> bool:
    folders = {part for path in files for part in path.split("/")[:-3]}
    return not folders.isdisjoint(part for pair in PAIRS for part in pair)


RECIPE = Recipe(
    read,
    home=REPOSITORY,
    citation="Lake, Salakhutdinov, Tenenbaum: Human-level concept learning through probabilistic "
    "program induction, Science 2015",
    # The small sets, which the configurations use; with tensorflow_datasets' length and SHA-256.
    downloads=(
        Download(
            f"{REPOSITORY}/raw/master/python/images_background_small1.zip",
            1_319_022,
            "f38eb80f801274ac2b4dff5b24289016bfaba4a7d5bb50deebf27104ad6cb8a4",
        ),
        Download(
            f"{REPOSITORY}/raw/master/python/images_background_small2.zip",
            1_580_917,
            "3ccaa407515a8778e5d0861875af38b17e418f301ad5bb3b5a6b65d901a41c7f",
        ),
    ),
    terms="MIT licence, copyright 2015 Brenden Lake",
    matches=matches,
)
