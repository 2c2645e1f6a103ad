"""Serves an exported model with nothing but jax, flatbuffers, numpy and Pillow:

    python launch/serve.py runs/folder_baseline [PORT]
    curl --data-binary @photo.jpg http://localhost:8000/     # [0.0312, -0.1178, …]

Needs model.stablehlo (`--mode=export`) and config.json of the work directory. For photographs: it listens on this
machine only, answers one request at a time, and takes at most 32 MiB.
"""

import io
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import jax
import jax.export
import numpy as np
from PIL import Image, ImageOps

LIMIT = 32 << 20  # bytes
run = Path(sys.argv[1])
config = json.loads((run / "config.json").read_text())
height, width = config["shape"]
embed = jax.jit(jax.export.deserialize(bytearray((run / "model.stablehlo").read_bytes())).call)


def pixels(data):
    """As the evaluation sees an image: the shorter side resized, the middle cut out; uint8 [H, W, 3]."""
    image = ImageOps.exif_transpose(Image.open(io.BytesIO(data))).convert("RGB")
    if config["config"]["data"]["crop"] == "none":
        return np.asarray(image.resize((width, height), Image.Resampling.BILINEAR))
    short, size = config["config"]["data"]["resize"], image.size
    image = image.resize([int(short * side / min(size)) for side in size], Image.Resampling.BILINEAR)
    left, top = (round((side - n) / 2) for side, n in zip(image.size, (width, height), strict=True))
    return np.asarray(image.crop((left, top, left + width, top + height)))


class Handler(BaseHTTPRequestHandler):
    timeout = 10  # seconds that a client may keep all others waiting

    def do_POST(self):
        try:
            length = int(self.headers["Content-Length"])
            if not 0 < length <= LIMIT:
                raise ValueError(f"send an image of 1 to {LIMIT} bytes")
            image = pixels(self.rfile.read(length))
            status, answer = 200, np.asarray(embed(image[None]))[0].tolist()
        except Exception as error:  # whatever is wrong with the image; the server goes on
            status, answer = 400, {"error": str(error)}
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


server = HTTPServer(("localhost", int(sys.argv[2]) if len(sys.argv) > 2 else 8000), Handler)
print(f"http://localhost:{server.server_port}/", flush=True)
server.serve_forever()
