"""Exports a model for other programs; its data set is not needed:

    dml-jax export --model=runs/birds --to=onnx,parquet [--output=DIRECTORY] [--push=user/name]

  onnx        model.onnx, for onnxruntime, TensorRT, OpenVINO, …; activations are float32 (extra
              "onnx"); also kept in the cache for --runtime=onnxruntime of embed, enroll and serve
  parquet     <split>.parquet from the run's embeddings: embedding, id, label, class_name, metadata

model.onnx takes "images", uint8 [batch, height, width, 3] in RGB, resized and cropped as for
evaluation, normalises them, and returns "embeddings", float32 [batch, D]. --push uploads the model,
with a model card of its results, to the Hugging Face hub (extra "hub");
`dml_jax.load("hf://user/name")` loads it from there.
"""

from __future__ import annotations

from dml_jax import files
from dml_jax.commands import cli
from dml_jax.files import BUCKETS

FORMS = ("onnx", "parquet")


def parser() -> cli.Parser:
    flags = cli.Parser(__doc__)
    cli.add_model(flags)
    flags.add_argument("--to", metavar="FORM,…", help="onnx, parquet")
    flags.add_argument("--output", metavar="DIRECTORY", help="default: the directory of the model")
    text = "upload to this repository on the Hugging Face hub"
    flags.add_argument("--push", metavar="USER/NAME", default="", help=text)
    text = "make a new repository visible only to its owner"
    flags.add_argument("--private", action="store_true", help=text)
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line and writes the files."""
    options = parser().read_plain(arguments)
    problem = "--to: missing; give onnx, parquet or onnx,parquet, or --push=user/name"
    cli.require(options.to or options.push, problem)
    forms = cli.choices("--to", options.to, FORMS) if options.to else ()
    if "onnx" in forms:
        check_converter(f"--to={options.to}")
    run_only = bool(options.push or "parquet" in forms)
    problem = f"--checkpoint={options.checkpoint}: must be reported with --to=parquet and --push"
    cli.require(options.checkpoint == "reported" or not run_only, problem)
    if options.push:
        cli.check_installed(f"--push={options.push}", "huggingface_hub", '-e ".[hub]"')
    from dml_jax.inference import model_export
    from dml_jax.inference.embedding_model import is_run, locate

    directory = locate(options.model)
    problem = "--push and --to=parquet: --model must be a finished run with results and embeddings"
    cli.require(is_run(directory) or not run_only, problem)
    writable = is_run(directory) and not options.model.startswith(BUCKETS)
    problem = f"--output: missing; give a directory for the files of {options.model}"
    cli.require(options.output or writable, problem)
    model_export.export_model(
        directory, forms, files.directory("--output", options.output or directory),
        checkpoint=options.checkpoint, trust_code=options.trust_code,
        push=options.push, private=options.private,
    )  # fmt: skip


def check_converter(option: str) -> None:
    """Raises ConfigError unless jax2onnx is installed and works with this version of JAX."""
    import jax

    from dml_jax.export import programs

    cli.check_installed(option, "jax2onnx", '-e ".[onnx]"')
    cli.require(
        jax.__version_info__ < programs.NEWER_JAX,
        f"{option}: jax2onnx cannot convert programs of JAX {jax.__version__}; install an older "
        'one, on any Python, with pip install -e ".[onnx]"',
    )
