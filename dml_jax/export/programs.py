"""The trained embedding function as one ONNX file, which includes the normalisation of the pixels
(extra "onnx").

images = np.zeros((B, H, W, 3), np.uint8)              # any B
session = onnxruntime.InferenceSession("model.onnx")   # or TensorRT, OpenVINO, ...
(embeddings,) = session.run(None, {"images": images})  # float32 [B, D]
"""

import contextlib
import io
import json
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.extend.core
import numpy as np

from dml_jax.backbones import convolution
from dml_jax.data import arrays
from dml_jax.data.arrays import Shape
from dml_jax.errors import DataError
from dml_jax.files import atomic_write, reason
from dml_jax.identity import KEY
from dml_jax.seal import Identity
from dml_jax.train.model import TrainedModel

OPSET = 18  # from 2022, so that older runtimes can read it
TOLERANCE = 1e-4
NEWER_JAX = (0, 11)  # no release of jax2onnx works with it
Embed = Callable[[jax.Array], jax.Array]


def function_of(model: TrainedModel) -> Embed:
    """The embedding function of a model, whose parameters and state become constants of a
    program."""
    return partial(model.method.embed, *jax.device_get((model.params, model.model_state)))


def write_onnx(
    path: Path, embed: Embed, image_shape: Shape, identity: Identity | None = None
) -> float:
    """Exports an embedding function with jax2onnx to a file, completely or not at all.

    Args:
      embed: uint8 [B, H, W, 3] -> float [B, D]; arrays it closes over (parameters, statistics) are
        stored in the file.
      image_shape: (H, W) in pixels, or of other arrays, fixed in the file; B remains symbolic.
      identity: of the function, for the metadata of the file: as a whole and by keys.

    Returns:
      The largest difference of the function in onnxruntime from `embed`, see `deviation_of`.
    """
    with convolution.plain():
        model = _converted(path, embed, image_shape)
        if identity:
            readable = {key: json.dumps(fact) for key, fact in identity.description.items()}
            stated = json.dumps(asdict(identity))
            for key, text in (readable | {KEY: stated}).items():
                model.metadata_props.add(key=key, value=text)
        content = model.SerializeToString()
        difference = deviation_of(content, jax.jit(embed), image_shape)
    if not difference < TOLERANCE:
        what = f"differs from the model by {difference:.1e} in onnxruntime"
        raise DataError(f"{path}: {what}; embed with dml_jax.load")
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(path) as draft:
        draft.write_bytes(content)
    return difference


def deviation_of(content: bytes, embed: Callable[[Any], Any], shape: Shape) -> float:
    """Largest difference of a graph in onnxruntime from `embed` on random pixels of (H, W),
    relative to the largest value."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # the exception contains the same text
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    worst = 0.0
    for size in (1, 3):  # images in a batch
        images = arrays.random(shape, size)
        ours, (theirs,) = np.asarray(embed(images)), session.run(None, {"images": images})
        worst = np.maximum(worst, np.abs(theirs - ours).max() / np.abs(ours).max())  # NaN stays NaN
    return float(worst)


def _converted(path: Path, embed: Embed, image_shape: Shape) -> Any:
    (batch,) = jax.export.symbolic_shape("batch")
    one = arrays.blank(image_shape)
    images = jax.ShapeDtypeStruct((batch, *one.shape), one.dtype)
    # While tracing, jax2onnx would replace Flax's layers by its versions, which lack options used
    # here; hence it gets a jaxpr.
    traced = jax.make_jaxpr(embed)(images)
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            import jax2onnx

            model = jax2onnx.to_onnx(
                jax.extend.core.jaxpr_as_fun(traced), [images], opset=OPSET, model_name="dml_jax",
                input_names=["images"], output_names=["embeddings"],
            )  # fmt: skip
    except Exception as error:  # many types, for operators and for their options
        raise DataError(
            f"{path}: cannot be converted to ONNX ({reason(error)}); embed with dml_jax.load"
        ) from error
    finally:
        logging.disable(disabled)
    _pool_images(model)
    _name_activations(model)
    return model


def _pool_images(model: Any) -> None:
    """Rewrites max pooling over [1, 1, B, H, W, C], the converter's form, as pooling over [B, C, H,
    W], because runtimes pool over at most three dimensions."""
    from onnx import helper, numpy_helper

    nodes = []
    for node in model.graph.node:
        options = {each.name: helper.get_attribute_value(each) for each in node.attribute}
        if node.op_type != "MaxPool" or len(options["kernel_shape"]) != 4:
            nodes.append(node)
            continue
        pads = options.get("pads", [0] * 8)
        window = {key: options[key][1:3] for key in ("kernel_shape", "strides")}
        window["pads"] = [*pads[1:3], *pads[5:7]]
        chain: list[tuple[str, list[str], dict[str, Any]]] = [
            ("Squeeze", ["two_axes"], {}),
            ("Transpose", [], {"perm": [0, 3, 1, 2]}),
            ("MaxPool", [], window),
            ("Transpose", [], {"perm": [0, 2, 3, 1]}),
            ("Unsqueeze", ["two_axes"], {}),
        ]
        value = node.input[0]
        for i, (kind, further, attributes) in enumerate(chain, start=1):
            output = node.output[0] if i == len(chain) else f"{node.output[0]}_{i}"
            nodes.append(helper.make_node(kind, [value, *further], [output], **attributes))
            value = output
    if len(nodes) > len(model.graph.node):
        model.graph.initializer.append(numpy_helper.from_array(np.array([0, 1]), "two_axes"))
        del model.graph.node[:]
        model.graph.node.extend(nodes)


def _name_activations(model: Any) -> None:
    """Rewrites x - c as x + (-c), max(x, 0) as Relu and min(x, c) as Clip, which runtimes merge
    with convolutions."""
    from onnx import numpy_helper

    constants = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    for node in model.graph.node:
        value = constants.get(node.input[1]) if len(node.input) == 2 else None
        if value is None or value.dtype.kind != "f":
            continue
        if node.op_type == "Sub":
            node.op_type, node.input[1] = "Add", f"{node.output[0]}_negative"
            model.graph.initializer.append(numpy_helper.from_array(-value, node.input[1]))
        elif node.op_type == "Max" and value.shape == () and value == 0:
            node.op_type = "Relu"
            del node.input[1]
        elif node.op_type == "Min" and value.shape == ():
            node.op_type = "Clip"
            node.input.insert(1, "")  # no lower limit
    used = set(_read(model.graph))
    for i in reversed(range(len(model.graph.initializer))):
        if model.graph.initializer[i].name not in used:  # onnxruntime would warn about it
            del model.graph.initializer[i]


def _read(graph: Any) -> Iterator[str]:
    """The names of the values that a graph reads or returns, also within its loops and branches."""
    yield from (value.name for value in graph.output)
    for node in graph.node:
        yield from node.input
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _read(attribute.g)
