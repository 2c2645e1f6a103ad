"""The serving example, in a process in which flax and the code of networks and methods cannot be imported."""

import io
import json
import subprocess
import sys
import urllib.error
import urllib.request
from dataclasses import asdict
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from PIL import Image

from dml_jax.config import Data
from dml_jax.data import decode, transforms
from dml_jax.export import stablehlo

SCRIPT = Path(__file__).parents[2] / "launch" / "serve.py"


def embed(images):
    return images.astype(jnp.float32).mean(axis=(1, 2)) / 255 + images[:, 0, 0] / 255


def test_a_posted_image_is_embedded(tmp_path: Path) -> None:
    data = Data(name="folder", crop="centre", resize=20, image_size=16)
    stablehlo.write(tmp_path / "model.stablehlo", embed, (16, 16), platforms=("cpu",))
    facts = {"shape": [16, 16], "config": {"data": asdict(data)}}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    script = (
        "import runpy, sys; sys.modules |= dict.fromkeys(('flax', 'dml_jax.methods', 'dml_jax.backbones')); "
        f"sys.argv = ['serve', {str(tmp_path)!r}, '0']; runpy.run_path({str(SCRIPT)!r})"
    )
    server = subprocess.Popen(
        [sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    try:
        address = server.stdout.readline().strip()
        rng = np.random.default_rng(0)
        for shape in ((33, 50), (71, 40), (20, 20)):
            file = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (*shape, 3), dtype=np.uint8)).save(file, "JPEG")
            with urllib.request.urlopen(address, data=file.getvalue(), timeout=60) as reply:
                answer = json.load(reply)
            seen = transforms.evaluation(data)(decode.rgb(file.getvalue()))
            np.testing.assert_allclose(answer, embed(jnp.asarray(seen)[None])[0], atol=1e-6)
        deep = np.random.default_rng(1).integers(0, 2**16, (20, 20), dtype=np.uint16)
        file = io.BytesIO()
        Image.fromarray(deep).save(file, "PNG")
        with urllib.request.urlopen(address, data=file.getvalue(), timeout=60) as reply:
            answer = json.load(reply)
        seen = transforms.evaluation(data)(np.repeat((deep >> 8).astype(np.uint8)[:, :, None], 3, axis=2))
        np.testing.assert_allclose(answer, embed(jnp.asarray(seen)[None])[0], atol=1e-6)
        for kind, image, words in (
            ("PNG", Image.new("L", (1, 6000)), "1x6000 pixels: one side is more than 100 times the other"),
            ("TIFF", Image.new("F", (20, 20)), "floating-point pixels"),
            ("EPS", Image.new("L", (20, 20)), "not an image"),
        ):
            file = io.BytesIO()
            image.save(file, kind)
            with pytest.raises(urllib.error.HTTPError, match="400") as refused:
                urllib.request.urlopen(address, data=file.getvalue(), timeout=60)
            with refused.value as answer:
                assert words in json.load(answer)["error"]
        body = "send an image of 1 to"
        for length, words in ((8, "not an image"), ("x", body), (0, body), (-1, body), (1 << 40, body)):
            request = urllib.request.Request(address, data=b"no image", headers={"Content-Length": str(length)})
            with pytest.raises(urllib.error.HTTPError, match="400") as refused:
                urllib.request.urlopen(request, timeout=60)
            with refused.value as answer:
                assert words in json.load(answer)["error"]
        taken = address.rstrip("/").rpartition(":")[2]
        (tmp_path / "hollow").mkdir()
        (tmp_path / "hollow" / "config.json").write_text("{}")
        for arguments, words in (
            ((), "give the work directory of a run"),
            (("none",), "none: is not a work directory (no config.json)"),
            (("hollow",), "hollow: has no model.stablehlo; create it with --mode=export"),
            ((".", "http"), "http: is not a port number"),
            ((".", "65536"), "65536: is not a port number"),
            ((".", taken), f"port {taken}: is not available"),
        ):
            done = subprocess.run(
                [sys.executable, str(SCRIPT), *arguments], cwd=tmp_path, capture_output=True, text=True, check=False
            )
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
            assert done.stderr.startswith("error: "), done.stderr
            assert words in done.stderr, done.stderr
    finally:
        server.kill()
        server.communicate()
