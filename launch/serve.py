"""Serves an exported model, without the code of its network and method:

    python launch/serve.py runs/folder_baseline [PORT]
    curl --data-binary @photo.jpg http://localhost:8000/     # [0.0312, -0.1178, …]

Reads model.stablehlo (written by `--mode=export`) and config.json of the work directory. Images are decoded and cropped
as in evaluation. This is an example: it listens on localhost only, handles one request at a time, and accepts at most
32 MiB.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import jax
import jax.export
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from dml_jax.data import Data, decode, transforms
from dml_jax.errors import DataError

LIMIT = 32 << 20  # bytes


def fail(message):
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


if len(sys.argv) not in (2, 3):
    fail("give the work directory of a run and optionally a port: python launch/serve.py runs/folder_baseline 8000")
run, port = Path(sys.argv[1]), (sys.argv[2:] or ["8000"])[0]
if not (run / "config.json").is_file():
    fail(f"{run}: is not a work directory (no config.json)")
if not (run / "model.stablehlo").is_file():
    fail(f"{run}: has no model.stablehlo; create it with --mode=export")
if not (port.isdecimal() and int(port) < 1 << 16):
    fail(f"{port}: is not a port number; give one in 0..65535, 0 for any free port")
config = json.loads((run / "config.json").read_text())
height, width = config["shape"]
options = ("crop", "resize", "image_size", "decode_scaled")
data_options = Data(**{key: value for key, value in config["config"]["data"].items() if key in options})
transform = transforms.evaluation(data_options)
embed = jax.jit(jax.export.deserialize(bytearray((run / "model.stablehlo").read_bytes())).call)


def pixels(data):
    """Decodes and crops an image as for evaluation: uint8 [H, W, 3]."""
    image = transform(decode.rgb(data, data_options.decoded_side))
    if image.shape[:2] != (height, width):  # the model was trained without cropping
        raise DataError(f"{image.shape[1]}x{image.shape[0]} pixels; resize the image to {width}x{height} first")
    return image


class Handler(BaseHTTPRequestHandler):
    timeout = 10  # seconds, since one client blocks all others

    def answer(self):
        try:
            length = int(self.headers["Content-Length"] or 0)
        except ValueError:
            length = 0
        if not 0 < length <= LIMIT:
            return 400, {"error": f"send an image of 1 to {LIMIT} bytes as the request body"}
        data = self.rfile.read(length)
        try:
            image = pixels(data)
        except DataError as error:
            return 400, {"error": str(error)}
        return 200, np.asarray(embed(image[None]))[0].tolist()

    def do_POST(self):
        status, answer = self.answer()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(json.dumps(answer).encode())


try:
    server = HTTPServer(("localhost", int(port)), Handler)
except OSError as error:
    fail(f"port {port}: is not available ({error.strerror}); give another as the second argument")
print(f"http://localhost:{server.server_port}/", flush=True)
server.serve_forever()
