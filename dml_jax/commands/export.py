"""Exports a model to other programs, without its data set:

    dml-jax export --model=runs/birds --to=onnx,parquet [--output=DIRECTORY] [--push=user/name]

  onnx        model.onnx, for onnxruntime, TensorRT, OpenVINO, …; activations are float32 (extra "onnx");
              also kept in the cache for --runtime=onnxruntime of embed, enroll and serve
  parquet     <split>.parquet from the run's embeddings: embedding, id, label, class_name, metadata
  faiss       index.faiss, IVF-PQ, of Parquet files of any number of rows: --to=faiss --embeddings=NAME.parquet
              --output=DIRECTORY instead of a model; prints its recall (extra "faiss")

model.onnx takes "images", uint8 [batch, height, width, 3] in RGB, resized and cropped as for the
evaluation; it includes the normalisation, and gives "embeddings", float32 [batch, D]. --push
uploads the model with a card of its results to the Hugging Face hub (extra "hub"), from where
`dml_jax.load("hf://user/name")` loads it.
"""  # noqa: E501

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path

from dml_jax.commands import cli
from dml_jax.errors import printable
from dml_jax.files import BUCKETS, expand_path

FORMS = ("onnx", "parquet")


def parser() -> cli.Parser:
    flags = cli.Parser(__doc__)
    cli.add_model(flags, required=False)
    flags.add_argument("--to", metavar="FORM,…", help="onnx, parquet; or faiss")
    flags.add_argument(
        "--embeddings", metavar="DIRECTORY", help="Parquet files of dml-jax embed, for --to=faiss"
    )
    flags.add_argument("--output", metavar="DIRECTORY", help="default: the directory of the model")
    flags.add_argument(
        "--push", metavar="USER/NAME", help="repository on the Hugging Face hub to upload to"
    )
    flags.add_argument(
        "--private", action="store_true", help="if the repository is new, only its owner sees it"
    )
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line and writes the files."""
    options = parser().read_plain(arguments)
    if options.to == "faiss" or options.embeddings:
        export_index(options)
        return
    cli.require(options.model, f"--model: missing; give {cli.MODELS}")
    import jax

    from dml_jax.export import programs
    from dml_jax.inference.embedding_model import is_run, locate

    cli.require(
        options.to or options.push, "--to: missing; give some of onnx,parquet, or --push=user/name"
    )
    forms = cli.choices("--to", options.to, FORMS) if options.to else ()
    if "onnx" in forms:
        cli.check_installed(f"--to={options.to}", "jax2onnx", '-e ".[onnx]"')
        cli.require(
            jax.__version_info__ < programs.NEWER_JAX,
            f"--to={options.to}: jax2onnx cannot convert programs of JAX {jax.__version__}; "
            "install an older one, "
            'on any Python, with pip install -e ".[onnx]"',
        )
    reported = options.checkpoint == "reported" or not ("parquet" in forms or options.push)
    cli.require(
        reported,
        f"--checkpoint={options.checkpoint}: --to=parquet and --push need the reported one",
    )
    if options.push:
        cli.check_installed(f"--push={options.push}", "huggingface_hub", "huggingface_hub")
    directory = locate(options.model)
    with_results = is_run(directory) or not (options.push or "parquet" in forms)
    cli.require(
        with_results,
        "--push and --to=parquet: need a finished run with results and embeddings as --model",
    )
    writable = options.output or (is_run(directory) and not options.model.startswith(BUCKETS))
    cli.require(writable, f"--output: missing; give a directory for the files of {options.model}")
    output = expand_path("--output", options.output) if options.output else directory
    export(directory, forms, output, options)


def export_index(options: argparse.Namespace) -> None:
    """Writes a faiss index of Parquet files and prints its recall."""
    from dml_jax.inference import large_search as search

    alone = (
        options.to == "faiss"
        and options.embeddings
        and options.output
        and not (options.model or options.push)
    )
    cli.require(
        alone,
        "--to=faiss: needs --embeddings=NAME.parquet and --output=DIRECTORY, and no other option",
    )
    cli.check_installed("--to=faiss", "faiss", "faiss-cpu")
    embeddings = search.table(options.embeddings, "--embeddings")
    file = expand_path("--output", options.output) / "index.faiss"
    file.parent.mkdir(parents=True, exist_ok=True)
    rows, recall = search.faiss(embeddings, file)
    sample = f"of the {search.NEIGHBORS} nearest rows of {min(search.SAMPLE, rows):,} queries"
    print(
        f"{printable(str(file))}: {rows:,} rows; {sample} it finds {recall:.1%} (nprobe "
        f"{search.PROBES})"
    )


def export(
    directory: Path, forms: tuple[str, ...], output: Path, options: argparse.Namespace
) -> None:
    """Writes the forms of a model into `output`, and pushes them with the model to a repository."""
    from dml_jax.export import embedding_files, hub, programs
    from dml_jax.inference import graphs
    from dml_jax.inference.model import Model
    from dml_jax.train import model

    load = partial(model.load, directory, options.checkpoint, trust_code=options.trust_code)
    # bfloat16 is rare among the operators of ONNX runtimes.
    trained = load(dtype="float32") if "onnx" in forms else None
    splits = sorted(
        path.parent for path in directory.glob("embeddings/*/manifest.json") if "parquet" in forms
    )
    missing = f"{directory}: holds no embeddings; write them with --mode=export of dml_jax.main"
    cli.require(splits or "parquet" not in forms, missing)
    if options.push:
        pushed = load()
        hub.results_of(directory, pushed)  # before anything is created
        hub.create(options.push, private=options.private)
    output.mkdir(parents=True, exist_ok=True)
    written = []
    for split in splits:
        written.append(output / f"{split.name}.parquet")
        embedding_files.write_parquet(written[-1], embedding_files.read(split))
        print(printable(str(written[-1])))
    if trained:
        written.append(output / "model.onnx")
        difference = programs.write_onnx(written[-1], programs.function_of(trained), trained.shape)
        print(f"{printable(str(written[-1]))}: largest difference from the model {difference:.1e}")
        if options.checkpoint == "reported":
            graphs.keep(Model(directory, trust_code=options.trust_code), written[-1])
    if options.push:
        hub.push(options.push, directory, pushed, written)
        print(f"https://huggingface.co/{options.push}")
