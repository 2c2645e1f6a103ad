"""The documentation: the site, the notebooks, and every command and link that a page shows."""

import importlib
import io
import json
import re
import shlex
import subprocess
import sys
from contextlib import redirect_stdout
from functools import cache
from pathlib import Path
from unittest import mock

import pytest

from dml_jax import cli
from dml_jax.__main__ import COMMANDS, MODULES
from dml_jax.config import flatten

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
COMMAND = re.compile(r"python -m dml_jax\.(\w+)([^`\n#]*)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without warnings."""
    directory = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", f"--site-dir={directory}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return directory


def test_the_site_lists_the_papers_numbers_with_their_commands(site: Path) -> None:
    """The numbers are copied from the papers' tables."""
    text = re.sub(r"<[^>]+>", " ", (site / "papers/index.html").read_text())
    rows = {line.split()[0]: line.split() for line in re.split(r"python -m dml_jax\.main --config=", text)[1:]}
    assert rows["cars_hist:paper"][1:5] == ["89.8", "94.0", "96.5", "75.5"]
    assert len(rows) > 150
    assert "python -m dml_jax.study --study=hist_alpha" in text


def test_the_site_documents_commands_options_and_functions(site: Path) -> None:
    commands, options = ((site / f"{name}/index.html").read_text() for name in ("commands", "options"))
    assert all(f'<h2 id="{name}">' in commands for name in COMMANDS)
    assert "--false_accept_rate" in commands
    for key in ("train.groups.NAME.learning_rate", "method.tau", "backbone.pixels.mean", "evaluation.protocol"):
        assert f"<code>{key}</code>" in options
    assert 'id="dml_jax.losses.pair_losses.triplet"' in (site / "api/losses/index.html").read_text()
    assert "img" in (site / "notebooks/digits/index.html").read_text()


def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert re.findall(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//', page.read_text()) == [], page
        assert re.findall(r'<link[^>]+rel="stylesheet"[^>]+href="(?:https?:)?//', page.read_text()) == [], page


def run_notebook(name: str, directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Executes the code of a notebook in a directory; returns its variables."""
    monkeypatch.chdir(directory)
    monkeypatch.setenv("MPLBACKEND", "agg")
    cells = json.loads((ROOT / f"docs/notebooks/{name}.ipynb").read_text())["cells"]
    variables: dict[str, object] = {"__name__": name}
    for cell in cells:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), f"{name}.ipynb", "exec"), variables)
    return variables


def test_the_notebook_on_metrics_and_losses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_notebook("metrics_and_losses", tmp_path, monkeypatch)
    assert found["after"]["map@r"] > 2 * found["found"]["map@r"]  # type: ignore[index]


@pytest.mark.slow
def test_the_notebook_on_digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_notebook("digits", tmp_path, monkeypatch)
    assert found["embeddings"].shape == (896, 64)  # type: ignore[attr-defined]


@pytest.mark.slow
def test_the_notebook_on_photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = run_notebook("photos", tmp_path, monkeypatch)
    assert found["cosines"][found["same"]].mean() > found["cosines"][~found["same"]].mean()  # type: ignore


@cache
def help_of(command: str) -> str:
    output = io.StringIO()
    with mock.patch.object(sys, "argv", [command, "--help"]), redirect_stdout(output):
        importlib.import_module(f"dml_jax.{MODULES.get(command, command)}").main()
    return output.getvalue()


@cache
def keys_of(config: str) -> set[str]:
    return set(flatten(cli.load_config(config, {})))


def shown_commands(page: Path) -> list[tuple[str, list[str]]]:
    """The commands on a page with their arguments; lines that end in a backslash continue."""
    text = re.sub(r"\\\n\s*", "", page.read_text(encoding="utf-8"))
    return [(module, shlex.split(rest)) for module, rest in COMMAND.findall(text)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_option_on_a_page_exists(page: Path) -> None:
    for module, arguments in shown_commands(page):
        assert module in {MODULES.get(name, name).removesuffix(".__main__") for name in COMMANDS}
        config = next((a.removeprefix("--config=") for a in arguments if a.startswith("--config=")), "")
        for argument in arguments:
            option, _, value = argument.partition("=")
            if option.startswith("--config."):
                assert not config or option.removeprefix("--config.") in keys_of(config), (argument, config)
            elif option.startswith("--"):
                assert re.search(rf"{option}\b", help_of(module)), (module, argument)
            if option == "--study":
                cli.find_file(option, value.partition(":")[0])
            if value.startswith("configs/") and option == "--config":
                keys_of(value)


def test_pages_show_commands() -> None:
    assert sum(len(shown_commands(page)) for page in PAGES) > 30


@pytest.mark.parametrize("page", PAGES[:2], ids=lambda page: page.name)
def test_every_link_of_a_page_outside_the_site_leads_to_a_file(page: Path) -> None:
    targets = [target.partition("#")[0] for target in re.findall(r"\]\(([^)]+)\)", page.read_text())]
    assert targets
    assert [target for target in targets if not target.startswith("http") and not (ROOT / target).exists()] == []
