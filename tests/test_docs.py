"""The documentation: the site, the notebooks, and every command, Python snippet and link that a page shows."""

import ast
import html
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
from PIL import Image

import dml_jax
from dml_jax.__main__ import COMMANDS, main
from dml_jax.backbones.weights import known_networks
from dml_jax.commands import cli
from dml_jax.commands import export as export_command
from dml_jax.config import import_code, plugin_module, resolve
from dml_jax.evaluation.open_set import Photographs
from dml_jax.export import programs
from tests import hub, tiny_model
from tests.backbones import state_dicts
from tests.data import pictures
from tests.papers import absent, modules, paper_of

ROOT = Path(__file__).parents[1]
SHOWN = modules(ROOT / "tests" / "documents")  # what the pages show of the papers that are there
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if page.parent != ROOT / "docs/papers"]  # see test_papers.py
COMMAND = re.compile(rf"(python -m dml_jax\.main|dml-jax (?:{'|'.join(COMMANDS)}))( [^`\n#]+)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without warnings."""
    pytest.importorskip("mkdocs")
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={directory}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return directory


def shown(page: Path) -> str:
    """The text of a page of the site."""
    text = re.sub(r"<[^>]+>", " ", (page / "index.html").read_text())
    return " ".join(html.unescape(text).split())


@pytest.mark.slow
def test_the_site_shows_published_numbers_commands_options_and_functions(site: Path) -> None:
    """The numbers are copied from the papers' tables."""
    papers = " ".join(shown(page) for page in (site / "papers").iterdir())
    for paper in SHOWN:
        assert all(part in papers for part in (*paper.ROWS, *paper.TEXTS))
    reference = (site / "reference/index.html").read_text()
    assert all(f'<h3 id="{name}">' in reference for name in COMMANDS)
    assert "--min_probability" in reference
    keys = ["seed", "init_from", "train.groups.NAME.learning_rate", "method.memory", "evaluation.protocol"]
    for key in (*keys, *(key for paper in SHOWN for key in paper.OPTIONS)):
        assert f"<code>{key}</code>" in reference
    assert 'id="dml_jax.losses.triplet"' in (site / "api/index.html").read_text()


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert re.findall(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//', page.read_text()) == [], page
        assert re.findall(r'<link[^>]+rel="stylesheet"[^>]+href="(?:https?:)?//', page.read_text()) == [], page


NOTEBOOKS: dict[str, Callable[[dict[str, Any]], bool]] = {  # name: what its variables show
    "metrics_and_losses": lambda found: found["after"]["map@r"] > 2 * found["found"]["map@r"],
    "digits": lambda found: found["embeddings"].shape == (896, 64),
    "photos": lambda found: found["cosines"][found["same"]].mean() > found["cosines"][~found["same"]].mean(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebooks(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "agg")
    cells = json.loads((ROOT / f"docs/notebooks/{name}.ipynb").read_text())["cells"]
    variables: dict[str, Any] = {"__name__": name}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{name}.ipynb", "exec"), variables)
    assert NOTEBOOKS[name](variables)


class Reached(Exception):
    """Raised instead of the work of a command, once its command line and configuration have been resolved."""


# The functions that first need data, weights, devices, a port or a network, or write.
WORK = (
    "dml_jax.main.run_mode", "dml_jax.main.compile_programs", "dml_jax.load", "dml_jax.inference.model.locate",
    "dml_jax.data.understand.recognise", "dml_jax.data.preparation.prepare", "dml_jax.commands.serve.bind",
    "dml_jax.backbones.weights.tensor_files.fetch", "dml_jax.inference.model_export.export_model",
    *(f"dml_jax.analysis.labelled_embeddings.{name}" for name in (
        "evaluate_runs", "evaluate_images", "evaluate_files", "evaluate_blocks", "print_results")),
    "dml_jax.inference.ray_engine.start", "dml_jax.inference.large_search.array", "dml_jax.analysis.changes.apply",
    "dml_jax.lab.plan.read_facts", "dml_jax.analyses.locate", "dml_jax.lab.plugins.find_plugins",
)  # fmt: skip
FILES = ("--query", "--index", "--verify", "--calibrate", "--check", "--apply")  # options that name existing files
NOT_EXECUTED = {  # why the slow test does not execute a command -> parts of such commands
    "schematic": ("…", "check mypaper", "model=RUN", "HOST:PORT"),
    "needs clicks": ("catalogue photos/ --apply",),
    "serves until it is stopped; test_main.py does so": ("photos/ --serve", "serve "),
    "needs the network": ("--name=sop --download", "--name=cub"),
    "needs a cluster": ("--coordinator=auto",),
    "needs the data set": ("configs/cub_", "configs/cars_", "--name=cars", "sop_", "omniglot_"),
    "needs such runs, files or weights": (
        "studies/comparison", "runs/a,runs/b", "model=runs/shop", "--engine=ray", "--config.init_from=weights/",
    ),
    "needs photographs": ("configs/folder_vit.py\n", "configs/folder_vit.py --config.train"),
    "needs an optional package; test_snippets_with_other_packages": ("onnx",),
    "takes minutes; other slow tests do so": (
        "check tests.plugins", "--config=configs/folder_baseline.py --config", "--compare", "subcenter_arcface",
    ),
    "of papers": tuple(part for paper in SHOWN for part in paper.NOT_EXECUTED),
}  # fmt: skip
OTHER_PACKAGES = {"onnxruntime": "jax2onnx", "pandas": "pandas", "faiss": "faiss"}  # part of a snippet -> its package
SNIPPETS_NOT_EXECUTED = {  # part of a snippet -> why test_python_snippets does not execute it
    **dict.fromkeys(OTHER_PACKAGES, "test_snippets_with_other_packages"),
    "from theirs import": "stands for another library; tests/backbones/test_other_libraries.py",
    "from equimo.models import": "may not be installed; tests/backbones/test_other_libraries.py",
}


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and content of the code blocks of a page; lines that end in a backslash continue."""
    text = re.sub(r"\\\n\s*", "", page.read_text(encoding="utf-8"))
    return re.findall(r"^```([\w{}.]*)[^\n]*\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def deleted(mention: str) -> bool:
    """Whether a path, a link or a command names a file, study or run of a paper that has been deleted."""
    names = (paper_of(word) for word in re.split(r"[\s=:#,-]+", mention))
    return any(absent(paper) for paper in names if paper)


def shown_commands(page: Path) -> list[tuple[str, list[str]]]:
    """The commands on a page, in blocks and in the text, with their arguments."""
    text = re.sub(r"\\\n\s*", "", page.read_text(encoding="utf-8"))
    return [
        (program.split()[-1].removeprefix("dml_jax."), shlex.split(rest))
        for program, rest in COMMAND.findall(text)
        if not deleted(rest)
    ]


ALL_COMMANDS = sorted({(module, *arguments) for page in PAGES for module, arguments in shown_commands(page)})


def stand_in(path: str) -> None:
    """Creates what an argument names: an image, a folder with a class of images, an array, or an empty file."""
    file = Path(path)
    image = file if file.suffix == ".jpg" else file / "wren" / "1.jpg"
    if file.suffix in ("", ".jpg"):
        pictures.write(image, 1)
    elif file.suffix == ".npy":
        np.save(file, np.eye(2, dtype=np.float32))
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()


@pytest.mark.parametrize("command", ALL_COMMANDS, ids=" ".join)
def test_every_command_resolves(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its options exist and go together, its configuration or study resolves; it ends where the work would begin."""
    module, *arguments = command
    if any("…" in argument for argument in arguments):
        arguments = ["--help"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "tests").symlink_to(ROOT / "tests")  # which has the examples of plug-ins
    for argument in arguments:
        option, _, value = argument.rpartition("=")
        if not argument.startswith(("-", "configs/")) or option in FILES:
            stand_in(value)

    def reach(*_: object, **__: object) -> None:
        raise Reached

    for function in WORK if module != "verify" else ("dml_jax.seal.sealed",):
        monkeypatch.setattr(function, reach)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # of servers, whose handler would stay in this process
    monkeypatch.setattr(cli, "check_installed", lambda *_: None)
    monkeypatch.setattr(programs, "NEWER_JAX", (99,))
    arguments = [argument.replace("HOST:PORT", "localhost:1234") for argument in arguments]
    if "--serve" in arguments or module == "serve":
        arguments.append("--port=0")  # any that is free
    monkeypatch.setattr(sys, "argv", ["dml-jax", "train" if module == "main" else module, *arguments])
    if "--help" in arguments or "--mode=show" in arguments:
        assert main() == 0
        return
    try:
        code = main()
    except Reached:
        return
    pytest.fail(f"exit code {code}: {capsys.readouterr().err}")


class Tiny(tiny_model.Tiny):
    """A model with a random background instead of a run's."""

    def training_classes(self) -> list[str]:
        return []

    def unseen(self) -> Photographs:
        rows = np.random.default_rng(0).normal(size=(400, self.matrix.shape[1]))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        names = np.tile([f"other {i}" for i in range(40)], 10)
        return Photographs(rows.astype(np.float32), names, np.tile("", 400))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in page.read_text()], ids=lambda page: page.name
)
def test_python_snippets(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The snippets of a page, one after the other, with a random projection in place of every trained model."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(dml_jax, "load", lambda *_, **__: Tiny())
    for i, name in enumerate("abcdx"):
        pictures.write(tmp_path / f"{name}.jpg", i)
    rows = np.random.default_rng(0).normal(size=(1200, 160)).astype(np.float32)
    given: dict[str, object] = {}
    if page.name == "embeddings.md":  # variables that the text around the snippets introduces
        persons, cameras = np.arange(1200) % 9, np.arange(1200) % 4
        given = {"embeddings": rows, "training": rows, "labels": persons, "queries": rows[:60], "gallery": rows[60:]}
        given |= {"persons": persons[:60], "gallery_persons": persons[60:]}
        given |= {"cameras": cameras[:60], "gallery_cameras": cameras[60:]}
    for language, content in blocks(page):
        if language == "python" and not any(part in content for part in SNIPPETS_NOT_EXECUTED):
            exec(compile(content, page.name, "exec"), given)
    if callable(make := given.get("get_config")):
        values = make().to_dict()
        import_code(values)
        resolve(values)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a run on digits under the names that the pages use."""
    directory = tmp_path_factory.mktemp("trained")
    short = ["--config.train.steps=4", "--config.evaluation.controls=false"]
    command = [sys.executable, "-m", "dml_jax.main", f"--config={ROOT}/configs/digits_baseline.py", *short]
    command += [f"--workdir={directory}/runs/folder_baseline"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=600)
    (directory / "runs" / "digits_baseline").symlink_to("folder_baseline")
    return directory


@pytest.mark.slow
@pytest.mark.parametrize("package", OTHER_PACKAGES)
def test_snippets_with_other_packages(package: str, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each gives the numbers of the run."""
    pytest.importorskip(OTHER_PACKAGES[package])
    monkeypatch.chdir(trained)
    monkeypatch.setenv("MPLBACKEND", "agg")
    model = dml_jax.load("runs/folder_baseline")
    images = np.random.default_rng(0).integers(0, 256, (3, *model.shape, 3), np.uint8)
    given: dict[str, Any] = {}
    for i, image in enumerate(images):
        Image.fromarray(image).save(f"{i}.png")
    monkeypatch.setattr(sys, "argv", ["program", *(f"{i}.png" for i in range(3))])
    (code,) = (c for page in PAGES for language, c in blocks(page) if language == "python" and package in c)
    if package == "onnxruntime":
        (export,) = (a for m, *a in ALL_COMMANDS if m == "export" and "--to=onnx" in a)
        assert cli.exit_code(lambda: export_command.execute([*export, f"--output={trained}"])) == 0
    exec(compile(code, package, "exec"), given)
    if package == "onnxruntime":
        np.testing.assert_allclose(given["embeddings"], model.embed(list(images)), atol=1e-5)
        return
    if package == "pandas":
        *_, last = ast.parse(code).body
        value = eval(ast.unparse(last), given)
        lines = map(json.loads, Path("runs/digits_baseline/metrics.jsonl").read_text().splitlines())
        np.testing.assert_allclose(value.lines[0].get_xydata(), [(each["step"], each["loss"]) for each in lines])
    else:
        _, nearest = given["index"].search(given["embeddings"], 1)
        np.testing.assert_array_equal(nearest[:, 0], np.arange(len(given["embeddings"])))


def timm_file(name: str, layout: str) -> bytes:
    """A published network with small random weights, as timm stores it."""
    config = known_networks.published()[name]
    tensors = state_dicts.random_state_dict(plugin_module("backbone", config.name).build(config), layout, side=224)
    return safetensors.numpy.save({key: np.asarray(0.02 * array, array.dtype) for key, array in tensors.items()})


@pytest.mark.slow
def test_every_command_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the order of the pages, on small photographs, with short trainings and random weights from a local hub."""
    with hub.running() as state:
        for repository, name, layout in (
            ("timm/resnet50.tv_in1k", "resnet50", "resnet"),
            ("timm/vit_small_patch14_dinov2.lvd142m", "dinov2_vits14", "vit"),
        ):
            state.repositories[repository] = {"model.safetensors": timm_file(name, layout)}
        monkeypatch.setenv("HF_TOKEN", "hf_of_me")
        for limit in ("HF_HUB_ETAG_TIMEOUT", "HF_HUB_DOWNLOAD_TIMEOUT"):  # of a busy machine
            monkeypatch.setenv(limit, "60")
        run_every_command(tmp_path)
    assert "results.json" in state.repositories["me/birds"]


def run_every_command(tmp_path: Path) -> None:
    def folder(name: str, classes: list[str], first: int) -> None:
        for seed, label in enumerate(classes):
            for i in range(4):  # on two days
                exif = Image.Exif()
                exif[0x0132] = f"2026:05:{1 + i % 2:02} 10:00:00"
                path = tmp_path / name / label / f"{i}.jpg"
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(pictures.encoded(first + 20 * seed + i, quality=90, exif=exif))

    products = ["wren", *(f"product {i}" for i in range(8))]
    folder("photos", ["wren", *(f"class {i}" for i in range(17))], 0)
    folder("others", [f"other {i}" for i in range(18)], 1000)
    folder("gallery", products, 2000)
    for name, first in (("later", 3000), ("new_photos", 4000)):
        folder(name, products, first)
    for name in ("this_one", "photo"):
        pictures.write(tmp_path / f"{name}.jpg", 900)
    shutil.copytree(ROOT / "tests/plugins", tmp_path / "tests/plugins")
    rng = np.random.default_rng(0)
    np.save(tmp_path / "embeddings.npy", rng.normal(size=(40, 4)))
    np.save(tmp_path / "labels.npy", np.arange(40) % 4)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    ran, failures = 0, []
    model = ("main", "--config=configs/folder_baseline.py:small", "--config.data.path=photos/")  # runs/folder_baseline
    commands = dict.fromkeys((m, *a) for page in PAGES for m, a in shown_commands(page))
    for module, *arguments in (model, *commands):
        shown = f"{module} {' '.join(arguments)}\n"
        if "--mode=show" not in arguments and any(part in shown for parts in NOT_EXECUTED.values() for part in parts):
            continue
        steps = ["--config.train.steps=2", "--config.evaluation.controls=false"]
        configurations = ("folder_vit.py", "folder_baseline.py:frozen")
        short = {f"--config=configs/{name}": steps for name in configurations}
        if arguments and re.fullmatch(r"--config=configs/digits_\w+\.py", arguments[0]):
            short[arguments[0]] = steps
        short[model[1]] = ["--config.train.epochs=1", "--workdir=runs/folder_baseline"]
        short |= {
            f"--study={name}": ["--list"]
            for name in ("configs/studies/folder_methods.py", "tests/plugins/comparison.py")
        }
        short |= {"--config=tests/plugins/experiment.py": steps}
        more = short.get(arguments[0], []) if arguments else []
        command = [sys.executable, "-m", "dml_jax", "train" if module == "main" else module, *arguments, *more]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=1800)
        ran += 1
        if done.returncode:
            failures.append(f"{shown}{done.stderr}")
    assert not failures, "\n".join(failures)
    assert ran >= 10


READ = [*PAGES, ROOT / "CHANGELOG.md", *map(ROOT.joinpath, ("benchmarks/RESULTS.md", "benchmarks/ACCELERATORS.md"))]
LINKING = [*READ, *sorted((ROOT / "docs/notebooks").glob("*.ipynb"))]


def anchors(page: Path) -> set[str]:
    """The anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.*)", page.read_text(), flags=re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", title).lower()) for title in headings}


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    """Also when the pages are read as files, without the site."""
    for target in re.findall(r"\]\(((?!http)[^)\s]+)\)", page.read_text()):
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        assert file.exists() or deleted(name), target
        if anchor and file.suffix == ".md" and "<!-- generated: " not in file.read_text():
            assert anchor in anchors(file), target


@pytest.mark.parametrize("page", READ, ids=lambda page: page.name)
def test_every_path_of_the_repository_exists(page: Path) -> None:
    """Those of a paper still to be added are called PAPER or x."""
    folders = "dml_jax|configs|tests|benchmarks|launch|docs"
    found = re.findall(rf"(?<![\w/.-])(?:{folders})/[\w/.*-]*[\w*]", page.read_text())
    paths = [path for path in found if not re.search(r"PAPER|[/_]x\b", path)]
    assert [p for p in paths if not (any(ROOT.glob(p)) or deleted(p))] == []
