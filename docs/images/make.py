"""The pictures of the documentation.

    python docs/images/make.py layers                  # layers.svg, from the imports of the package
    python docs/images/make.py photographs photos/     # from a folder of photographs, one per class

`photographs` trains `folder_baseline:frozen` in `runs/pictures`, copies the retrieved images of its
report to retrieval.png, and takes screenshots of the report, the catalogue and the server with
Chromium, which must be installed.
"""

import ast
import io
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from PIL import Image

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))

from tests.layers import LAYERS  # noqa: E402

WIDTH, ROW, BOX, GAP = 900, 46, 28, 14  # pixels
RUN = ROOT / "runs/pictures"


def imports() -> dict[str, set[str]]:
    """The packages and modules at the top of `dml_jax` that each one imports."""
    found: dict[str, set[str]] = {name: set() for layer in LAYERS for name in layer}
    for path in (ROOT / "dml_jax").rglob("*.py"):
        name = path.relative_to(ROOT / "dml_jax").parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dml_jax"):
                parts = (node.module or "").split(".")[1:2] or [one.name for one in node.names]
                if name in found:
                    found[name] |= {*parts} & found.keys() - {name}
    return found


def layers() -> str:
    """An SVG of the layers; a line leads to each package that no other imported package imports."""
    graph = imports()
    below: dict[str, set[str]] = {}
    for name in (name for layer in LAYERS for name in sorted(layer)):
        below[name] = graph[name].union(*(below.get(one, set()) for one in graph[name]))
    shown: dict[str, tuple[float, float, float]] = {}  # name: left, top, width
    rows = [sorted(layer - {"__init__"}) for layer in reversed(LAYERS)]
    for number, row in enumerate(rows):
        widths = [9 * len(name) + 24 for name in row]
        left = (WIDTH - sum(widths) - GAP * (len(row) - 1)) / 2
        for name, width in zip(row, widths, strict=True):
            shown[name] = left, number * ROW + 9, width
            left += width + GAP
    lines, boxes = [], []
    for name, (left, top, width) in shown.items():
        direct = {
            one
            for one in graph[name] & shown.keys()
            if not any(one in below[other] for other in graph[name] - {one})
        }
        for one in sorted(direct):
            x, y, w = shown[one]
            start = f'x1="{left + width / 2:g}" y1="{top + BOX:g}"'
            lines.append(f'<line {start} x2="{x + w / 2:g}" y2="{y:g}"/>')
        boxes.append(
            f'<rect x="{left:g}" y="{top:g}" width="{width:g}" height="{BOX}" rx="4"/>'
            f'<text x="{left + width / 2:g}" y="{top + 19:g}">{name}</text>'
        )
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {len(rows) * ROW}" '
        'font-family="monospace" font-size="15" text-anchor="middle">',
        "<style>rect{fill:#e8eaf6;stroke:#3949ab}line{stroke:#9fa8da}</style>",
        f'<rect width="{WIDTH}" height="{len(rows) * ROW}" style="fill:#fff;stroke:none"/>',
        *lines,
        *boxes,
        "</svg>\n",
    ])  # fmt: skip


def start(folder: Path, *arguments: str) -> subprocess.Popen[bytes]:
    """Starts a command beside the photographs, so that pages show their name and no path."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "dml_jax", *arguments]
    return subprocess.Popen(command, cwd=folder.parent, env=environment)


def small(path: Path, most: int) -> None:
    """Reduces a PNG until it has at most this number of bytes."""
    image = Image.open(path).convert("RGB")
    for colours in (256, 128, 64, 32):
        content = io.BytesIO()
        image.quantize(colours).save(content, "PNG", optimize=True)
        if content.tell() <= most:
            break
    path.write_bytes(content.getvalue())


def screenshot(address: str, name: str, height: int) -> None:
    """A picture of the top of a page, 1,400 pixels wide."""
    with tempfile.TemporaryDirectory() as profile:
        options = (
            "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
            "--hide-scrollbars --disable-background-networking --disable-component-update"
        )
        command = ["chromium", *options.split(), f"--user-data-dir={profile}"]
        command += [f"--window-size=1400,{height}", f"--screenshot={HERE / name}", address]
        subprocess.run(command, check=True, timeout=120)
    small(HERE / name, 200_000)


def photographs(folder: Path) -> None:
    def run(*arguments: str) -> None:
        if code := start(folder, *arguments).wait():
            sys.exit(code)

    data = f"--config.data.path={folder.name}"
    run("train", "--config=folder_baseline:frozen", data, f"--workdir={RUN}")
    figure = Image.open(RUN / "figures/retrieval.png")
    figure.crop((0, 0, figure.width, int(0.507 * figure.height))).save(HERE / "retrieval.png")
    small(HERE / "retrieval.png", 400_000)
    screenshot(f"file://{RUN}/report.html", "report.png", 1000)
    run("catalogue", folder.name, f"--output={RUN}-catalogue")
    screenshot(f"file://{RUN}-catalogue/catalogue.html", "catalogue.png", 640)
    run("enroll", "--model=lite0", f"--index={RUN}-index", folder.name)
    index = f"--index={RUN}-index"
    server = start(folder, "serve", "--model=lite0", index, "--port=8765")
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen("http://127.0.0.1:8765/health", timeout=1).close()
                break
            except OSError:
                time.sleep(1)
        screenshot("http://127.0.0.1:8765/", "serve.png", 440)
    finally:
        server.terminate()
        server.wait()


if __name__ == "__main__":
    what, *arguments = sys.argv[1:]
    if what == "layers":
        (HERE / "layers.svg").write_text(layers(), encoding="utf-8")
    else:
        photographs(Path(arguments[0]).resolve())
