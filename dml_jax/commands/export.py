"""Hands a model on to other programs, without its data set:

    dml-jax export --model=runs/birds --to=onnx,parquet [--output=DIRECTORY] [--push=user/name]

  onnx        model.onnx, for onnxruntime, TensorRT, OpenVINO, …; activations are float32 (extra "onnx")
  stablehlo   model.stablehlo, for any program with JAX
  parquet     <split>.parquet from the run's embeddings: embedding, id, label, class_name, metadata

Both models take "images", uint8 [batch, height, width, 3] in RGB, resized and cropped as for the evaluation; they
include the normalisation, and give "embeddings", float32 [batch, D]. With --code and --dimensions, Parquet files have
int8 or binary codes, or fewer dimensions after PCA whitening (`dml_jax.evaluation.compression`). --push uploads the
model with a card of its results to the Hugging Face hub (extra "hub"), from where `dml_jax.load("hf://user/name")`
loads it.
"""

import argparse
from functools import partial
from pathlib import Path
from typing import get_args

import jax

from dml_jax.commands import cli, model_options
from dml_jax.errors import ConfigError, DataError, printable
from dml_jax.evaluation import check_inputs
from dml_jax.evaluation.compression import Code, Compression, fit
from dml_jax.export import embedding_files, hub, onnx, parquet, stablehlo
from dml_jax.files import BUCKETS, expand_path
from dml_jax.inference import model
from dml_jax.train.model import load

FORMS = ("onnx", "stablehlo", "parquet")


def parser() -> cli.Parser:
    """The options of the command."""
    flags = cli.Parser(__doc__)
    model_options.add(flags)
    flags.add_argument("--to", metavar="FORM,…", help="onnx, stablehlo, parquet")
    flags.add_argument("--output", metavar="DIRECTORY", help="default: the directory of the model")
    flags.add_argument("--code", choices=get_args(Code), default="float32", help="of Parquet rows; default: float32")
    flags.add_argument(
        "--training", metavar="FILE", help="embeddings of training images, .npy, that codes are fitted to"
    )
    flags.add_argument("--dimensions", type=int, default=0, help="PCA whitening to so many dimensions, with --training")
    flags.add_argument("--push", metavar="USER/NAME", help="repository on the Hugging Face hub to upload to")
    flags.add_argument("--private", action="store_true", help="if the repository is new, only its owner sees it")
    return flags


def execute(arguments: list[str]) -> None:
    """Reads the command line and writes the files."""
    options = parser().read_plain(arguments, "dml-jax export")
    model_options.check(options)
    if not (options.to or options.push):
        raise ConfigError(f"--to: missing; give some of {','.join(FORMS)}, or --push=user/name")
    forms = cli.choices("--to", options.to, FORMS) if options.to else ()
    if "onnx" in forms:
        cli.check_installed(f"--to={options.to}", "jax2onnx", '-e ".[onnx]"')
        if jax.__version_info__ >= onnx.NEWER_JAX:
            raise ConfigError(
                f"--to={options.to}: jax2onnx cannot convert programs of JAX {jax.__version__}; install an older one, "
                'on any Python, with pip install -e ".[onnx]", or export stablehlo'
            )
    if options.checkpoint != "reported" and "parquet" in forms:
        raise ConfigError(f"--checkpoint={options.checkpoint}: the run has embeddings of the reported one only")
    compressed = options.code != "float32" or options.dimensions
    if compressed and not (options.training and "parquet" in forms):
        raise ConfigError(
            "--code and --dimensions: need --to=parquet and --training=FILE, the embeddings of training images"
        )
    if options.training and not compressed:
        raise ConfigError("--training: is for --code and --dimensions; give one of them")
    if options.push:
        if options.push.count("/") != 1:
            raise ConfigError(f"--push={options.push}: must be user/name")
        cli.check_installed(f"--push={options.push}", "huggingface_hub", "huggingface_hub")
        if options.checkpoint != "reported":
            raise ConfigError(f"--checkpoint={options.checkpoint}: --push uploads the reported one with its results")

    if str(options.model).startswith(BUCKETS) and not options.output:
        raise ConfigError(f"--output: missing; give a directory for the files of {options.model}")
    workdir = model.locate(options.model)
    if not model.is_run(workdir):
        for option, given in (("--push", options.push), ("--to=parquet", "parquet" in forms)):
            if given:
                raise ConfigError(f"{option}: needs a finished run with results and embeddings as --model")
        if not options.output:
            raise ConfigError(f"--output: missing; give a directory for the files of {options.model}")
    output = expand_path("--output", options.output) if options.output else workdir
    if output.exists() and not output.is_dir():
        raise ConfigError(f"--output={options.output}: is a file; give a directory")
    export(
        workdir, forms, options.checkpoint, output, options.push, private=options.private,
        trust_code=options.trust_code, code=options.code, compression=_compression(options),
    )  # fmt: skip


def _compression(options: argparse.Namespace) -> Compression | None:
    """The compression that the options ask for."""
    if not options.training:
        return None
    training = check_inputs.load(expand_path("--training", options.training), name="--training")
    return fit(training, options.dimensions, whiten=bool(options.dimensions))


def export(
    workdir: Path,
    forms: tuple[str, ...],
    checkpoint: str,
    output: Path,
    repository: str | None,
    *,
    private: bool,
    trust_code: bool,
    code: Code = "float32",
    compression: Compression | None = None,
) -> None:
    """Writes the forms into `output`, and pushes them with the model to a repository."""
    # bfloat16 is rare among the operators of ONNX runtimes.
    dtypes = {"stablehlo": None, "onnx": "float32"}
    loaded = {
        form: load(workdir, checkpoint, dtype=dtype, trust_code=trust_code)
        for form, dtype in dtypes.items()
        if form in forms
    }
    splits = exported_splits(workdir) if "parquet" in forms else []
    if repository:
        pushed = loaded.get("stablehlo") or load(workdir, checkpoint, trust_code=trust_code)
        hub.results_of(workdir, pushed)  # before anything is created
        hub.create(repository, private=private)
    output.mkdir(parents=True, exist_ok=True)
    written = []
    for split in splits:
        written.append(output / f"{split.name}.parquet")
        parquet.write(written[-1], embedding_files.read(split), compression, code)
        print(printable(str(written[-1])))
    for form, write in (("stablehlo", stablehlo.write), ("onnx", onnx.write)):
        if form in forms:
            trained = loaded[form]
            variables = jax.device_get((trained.params, trained.model_state))
            written.append(output / f"model.{form}")
            difference = write(written[-1], partial(trained.method.embed, *variables), trained.shape)
            print(f"{printable(str(written[-1]))}: largest difference from the model {difference:.1e}")
    if repository:
        hub.push(repository, workdir, pushed, written)
        print(f"https://huggingface.co/{repository}")


def exported_splits(workdir: Path) -> list[Path]:
    """The directories of the run's embeddings; raises DataError if there are none."""
    found = sorted(path.parent for path in (workdir / "embeddings").glob("*/manifest.json"))
    if not found:
        raise DataError(f"{workdir}: holds no embeddings; write them with --mode=export of dml_jax.main")
    return found
