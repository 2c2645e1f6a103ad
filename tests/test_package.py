"""The installed package: a wheel used outside the checkout, the console command, and what is imported when."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import dml_jax
from dml_jax.__main__ import COMMANDS

ROOT = Path(__file__).parents[1]
SLOWEST = {"tensorflow_datasets", "matplotlib", "sklearn"}
HEAVY = {"jax", "flax", "orbax", "scipy", "pyarrow", *SLOWEST}


def python(*arguments: str, directory: Path = ROOT, path: Path = ROOT) -> "subprocess.CompletedProcess[str]":
    """Runs Python, with `path` before the other packages."""
    search = os.pathsep.join(filter(None, (str(path), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": search}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=directory, env=environment, capture_output=True, text=True, timeout=300)


def test_the_citation_is_of_this_release() -> None:
    urls = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]
    lines = (ROOT / "CITATION.cff").read_text(encoding="utf-8").splitlines()
    assert f"version: {dml_jax.__version__}" in lines
    assert f"repository-code: {urls['Repository']}" in lines


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the package as the wheel installs it."""
    directory = tmp_path_factory.mktemp("wheel")
    built = python("-m", "hatchling", "build", "--target=wheel", f"--directory={directory}")
    assert built.returncode == 0, built.stderr
    (wheel,) = directory.glob("*.whl")
    assert wheel.name == f"dml_jax-{dml_jax.__version__}-py3-none-any.whl"
    site = directory / "site"
    options = ("--no-deps", "--no-index", "--no-compile", f"--target={site}")
    done = python("-m", "pip", "install", *options, str(wheel))
    assert done.returncode == 0, done.stderr
    return site


@pytest.mark.slow
def test_a_wheel_holds_the_package_and_the_configurations(installed: Path) -> None:
    tracked = subprocess.run(["git", "ls-files", "dml_jax", "configs"], cwd=ROOT, capture_output=True, text=True)
    expected = [f"dml_jax/shipped/{n}" if n.startswith("configs/") else n for n in tracked.stdout.split()]
    assert "dml_jax/py.typed" in expected
    assert len(expected) > 200
    assert [name for name in expected if not (installed / name).is_file()] == []
    names = {"dml_jax", f"dml_jax-{dml_jax.__version__}.dist-info", "bin"}
    assert {path.name for path in installed.iterdir()} == names


@pytest.mark.slow
def test_an_own_configuration_comes_first_and_imports_those_of_the_package(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    own = (
        "from configs import cars_baseline\ndef get_config():\n  c = cars_baseline.get_config()\n"
        "  c.name = 'mine'\n  return c"
    )
    (tmp_path / "configs/cub_baseline.py").write_text(own)
    command = installed / "bin/dml-jax"
    arguments = ("train", "--config=configs/cub_baseline.py", "--mode=show")
    done = python(str(command), *arguments, directory=tmp_path, path=installed)
    assert done.returncode == 0, done.stderr
    assert "name = mine" in done.stdout
    assert "path = data/cars" in done.stdout
    assert "recall@1 0.842" in done.stdout


@pytest.mark.slow
def test_an_installed_package_trains_and_studies(installed: Path, tmp_path: Path) -> None:
    config = ("--config=configs/digits_baseline.py", "--config.train.steps=2")
    train = ("train", *config, "--workdir=run", "--quiet")
    done = python("-m", "dml_jax", *train, directory=tmp_path, path=installed)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run/report.html").is_file()
    study = ("study", "--study=omniglot_methods", "--list")
    done = python("-m", "dml_jax", *study, directory=tmp_path, path=installed)
    assert done.returncode == 0, done.stderr
    assert "--workdir=runs/studies/omniglot_methods/" in done.stdout.splitlines()[0]


def test_every_command_is_one_of_the_console_command() -> None:
    files = (ROOT / "dml_jax/commands").glob("*.py")
    assert {"train", "explore"} | {path.stem for path in files if "\ndef execute(" in path.read_text()} == set(COMMANDS)


def test_the_console_command_explains_itself() -> None:
    assert python("-m", "dml_jax").stdout == python("-m", "dml_jax", "--help").stdout
    assert "  embed     embed images with a trained model\n" in python("-m", "dml_jax", "--help").stdout
    assert python("-m", "dml_jax", "export", "--help").stdout.startswith("usage: dml-jax export [-h]")
    assert python("-m", "dml_jax", "--version").stdout == f"{dml_jax.__version__}\n"


def imported(code: str) -> set[str]:
    """The packages that are imported after running `code`."""
    done = python("-c", f"import sys\n{code}\nprint(*{{m.partition('.')[0] for m in sys.modules}})")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


def test_the_package_lists_its_public_names() -> None:
    assert dir(dml_jax) == ["__version__", "evaluation", "load", "losses", "methods"]
    assert all(getattr(dml_jax, name) for name in dir(dml_jax))


def test_importing_the_package_imports_no_other() -> None:
    assert imported("import dml_jax") & {*HEAVY, "numpy", "pydantic", "PIL"} == set()


@pytest.mark.parametrize(
    "code",
    [
        "import dml_jax.lab.studies",  # each trial begins with them, in a process of its own
        # With a graph, onnxruntime embeds: importing JAX would take longer than the answer.
        "from dml_jax.data import formats\n"
        "from dml_jax.inference import bulk_embedding, enrollment, graphs\n"
        "from dml_jax.serving import http_service",
    ],
)
def test_what_runs_without_jax_does_not_import_it(code: str) -> None:
    assert not {"jax", "pyarrow"} & imported(code)


HELP = f"""
from dml_jax import __main__
for command in {list(COMMANDS)}:
    sys.argv[1:] = [command, "--help"]
    __main__.main()
    assert not {{*sys.modules}} & {HEAVY}, command
"""


def test_help_is_printed_without_slow_imports() -> None:
    imported(HELP)


def test_messages_name_packages_that_can_be_installed_anywhere() -> None:
    """An extra of this package could only be installed from a checkout."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    known = {re.match(r"[\w-]+", package)[0] for packages in extras.values() for package in packages}  # type: ignore[index]
    known |= {"kubernetes", "requests"}  # `train.cluster` is for environments that have them
    known |= {"xprof"}  # shows the traces of `--profile`
    asked = {
        word
        for file in (ROOT / "dml_jax").rglob("*.py")
        for words in re.findall(r"pip install((?: +\w[\w.-]*)+)", file.read_text())
        for word in words.split()
    }
    assert "uvicorn" in asked
    assert asked <= known, asked - known
