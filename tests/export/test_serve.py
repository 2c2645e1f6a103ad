"""The serving example in a process that can import neither this package nor flax."""

import io
import json
import subprocess
import sys
import urllib.error
import urllib.request
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


def test_a_posted_image_comes_back_as_its_embedding(tmp_path: Path) -> None:
    data = Data(name="folder", crop="centre", resize=20, image_size=16)
    stablehlo.write(tmp_path / "model.stablehlo", embed, (16, 16), platforms=("cpu",))
    facts = {"shape": [16, 16], "config": {"data": {"crop": data.crop, "resize": data.resize}}}
    (tmp_path / "config.json").write_text(json.dumps(facts))
    script = (
        "import runpy, sys; sys.modules |= {'dml_jax': None, 'flax': None}; "
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
            seen = transforms.testing(data)(decode.rgb(file.getvalue()))
            np.testing.assert_allclose(answer, embed(jnp.asarray(seen)[None])[0], atol=1e-6)
        for length, words in ((8, "cannot identify image"), (0, "of 1 to"), (-1, "of 1 to"), (1 << 40, "of 1 to")):
            request = urllib.request.Request(address, data=b"no image", headers={"Content-Length": str(length)})
            with pytest.raises(urllib.error.HTTPError, match="400") as refused:
                urllib.request.urlopen(request, timeout=60)
            with refused.value as answer:
                assert words in json.load(answer)["error"]
    finally:
        server.kill()
        server.communicate()
