"""The work directory of a run: one configuration, one writer at a time."""

import hashlib
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, Any

import jax
from annotated_types import Ge, Lt
from pydantic import AfterValidator, StrictInt

from dml_jax import buckets, files, seal
from dml_jax import identity as identities
from dml_jax._version import __version__
from dml_jax.config import LENGTH, Config, decisive, flatten, import_code, resolve
from dml_jax.config.modules import check_stored
from dml_jax.data import arrays
from dml_jax.data.arrays import Shape
from dml_jax.errors import CheckpointError, ConfigError, UserError
from dml_jax.files import read_json, sha256, write_json
from dml_jax.seal import Identity
from dml_jax.train.distributed.stop_signals import Interrupted

# Files that a failed start leaves behind.
UNUSED = {".config.json.lock", "starts.json", "config.json", "logs", "tensorboard"}
STARTS = 5  # consecutive failed starts without a newer checkpoint
SHOWN = 5  # differences that an error message lists
LIBRARIES = ("jax", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "pillow")
CHANGED = "has changed since this run started"
DATA = f"the data set {CHANGED}; give another --workdir"
# Entries that distinguish runs, in addition to the configuration, with messages for a difference.
WHAT = {
    **dict.fromkeys(("data_hash", "classes", "images", "shape"), DATA),
    "teacher": f"the teacher {CHANGED}; give another --workdir",
    "x64": f"JAX_ENABLE_X64, which sets the precision, {CHANGED}; restore its value",
}

# Files of other origin that a run would replace or delete.
REPLACED = (seal.MANIFEST, "metrics.jsonl", "results.json", "report.html")
KIND = "run"
# Files of a finished run outside its sealed directories.
FILES = (
    *("config.json", "metrics.jsonl", "timing.jsonl", "results.json", "queries.npz"),
    *("report.html", "figures/*", "analysis/*"),
)
REMEDY = (
    f"restore it from a copy, or delete {seal.MANIFEST} and run the same command to evaluate and "
    "write it again"
)

Count = Annotated[StrictInt, Ge(1), Lt(2**31)]


@dataclass
class RunRecord:
    """The entries of config.json that this package reads; see `provenance`."""

    config: dict[str, Any]
    data_hash: str
    classes: Count
    images: Count
    shape: Annotated[tuple[Count | str, ...], AfterValidator(arrays.check_shape)]
    x64: bool = False
    teacher: dict[str, Any] | None = None
    class_names: list[str] | None = None  # names of the training classes


def read_config(workdir: Path) -> dict[str, Any]:
    """The `config.json` of a work directory."""
    path = workdir / "config.json"
    if not path.exists():
        raise CheckpointError(
            f"{workdir}: contains no run (config.json) and no converted weights (weights.json); "
            "give the work directory of a run, weights converted by `dml-jax convert`, or lite0"
        )
    seal.file(workdir, path.name, error=CheckpointError, remedy=REMEDY)
    remedy = "restore it from a copy, or give another --workdir"
    return read_json(path, RunRecord, remedy, CheckpointError)


def run_config(workdir: Path, *, trust_code: bool = False) -> Config:
    """The configuration of a run; ConfigError if it is invalid or needs untrusted code."""
    values = read_config(workdir)["config"]
    import_code(values) if trust_code else check_stored(values)
    return resolve(values)


def identity(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The entries that distinguish runs: configuration, data, precision and teacher."""
    return {key: facts[key] for key in ("config", *WHAT) if key in facts}


def check_same_run(workdir: Path, here: Mapping[str, Any], *, selecting: bool = True) -> None:
    """Raises CheckpointError if a directory or its newest checkpoint belongs to a different run.

    Options that do not affect the model may differ; so may the length, if the first steps are the
    same, and the test-time variant, unless models are still selected (`selecting`). A directory
    without a run must not contain files that a run replaces.
    """
    checkpoints = complete_checkpoints(buckets.origin(workdir / "checkpoints" / "latest"))
    if (workdir / "config.json").exists():
        check_same_facts(workdir, read_config(workdir), here, selecting=selecting)
    elif obstacles := [name for name in REPLACED if not checkpoints and (workdir / name).exists()]:
        raise CheckpointError(
            f"--workdir={workdir}: contains {obstacles[0]} but no run; give another --workdir"
        )
    for checkpoint in reversed(checkpoints):
        try:
            run = seal.read_manifest(checkpoint, error=CheckpointError).about.get("run", {})
        except CheckpointError:  # restoring it gives the remedy
            continue
        check_same_facts(checkpoint, run, here, selecting=selecting)
        break


def check_same_facts(
    where: Path, stored: Mapping[str, Any], here: Mapping[str, Any], *, selecting: bool = True
) -> None:
    """Raises CheckpointError if the stored `identity` differs from this one."""
    if "config" in here:
        config = stored.get("config")
        config = config if isinstance(config, Mapping) else {}
        _check_same_config(where, config, here["config"], selecting)
    for key, problem in WHAT.items():
        old, new = stored.get(key, False if key == "x64" else None), here.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):  # teachers
            old, new = old.get("sha256"), new.get("sha256")
        if key in here and old != new:
            raise CheckpointError(f"{where}: {problem}")


def complete_checkpoints(directory: Path) -> list[Path]:
    """The complete checkpoints in a directory, by step."""
    places = (path.parent for path in directory.glob(f"*/{seal.MANIFEST}"))
    numbered = (path for path in places if path.name.isdecimal())
    return sorted(numbered, key=lambda path: int(path.name))


def _check_same_config(
    where: Path, stored: Mapping[str, Any], here: Mapping[str, Any], selecting: bool
) -> None:
    stored, here = _resolved(stored), _resolved(here)
    old, new = (decisive(values, selecting=selecting) for values in (stored, here))
    keys = sorted(key for key in old.keys() | new.keys() if old.get(key) != new.get(key))
    old, new = flatten(stored), flatten(here)
    # Otherwise, config.json was edited by hand.
    complete = all(isinstance(old.get(key), int) for key in LENGTH)
    longer = not keys and complete and _may_be_longer(new, old["train.steps"])
    for key in LENGTH:
        if old.get(key) != new[key] and not (longer and old[key] < new[key]):
            keys.append(key)
    if keys:
        # A different method also has different options.
        listed = ["method.name"] if "method.name" in keys else keys[:SHOWN]
        differences = ", ".join(
            f"{key} ({old.get(key)!r} there, {new.get(key)!r} here)" for key in listed
        )
        raise CheckpointError(
            f"{where}: belongs to a run with a different configuration: {differences}; give "
            "another --workdir"
        )


def _resolved(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A configuration with defaults for missing options."""
    with suppress(ConfigError):
        return asdict(resolve(config))
    return config


def _may_be_longer(config: Mapping[str, Any], steps: int) -> bool:
    """Whether a run of `steps` steps (0: in epochs) equals the start of a longer one."""
    every = config["train.evaluate_every"]
    regular = not every
    if steps:
        regular = bool(every) and not config["train.warmup_epochs"] and steps % every == 0
    fixed = config["train.schedule"] in ("constant", "step")  # independent of the length
    select = config["train.select"]
    return fixed and select != "folds" and (select == "last" or regular)


@contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Creates and locks the directory; removes it again if nothing was written."""
    new = [path for path in (workdir, *workdir.parents) if not path.exists()]
    with ExitStack() as stack:
        try:
            workdir.mkdir(parents=True, exist_ok=True)
            stack.enter_context(files.locked(workdir / "config.json", wait=False))
            buckets.take_over(workdir)
        except UserError:
            raise CheckpointError(f"--workdir={workdir}: another run is using it") from None
        except FileNotFoundError:  # the file system does not allow new directories
            raise CheckpointError(
                f"--workdir={workdir}: cannot be created; give another directory"
            ) from None
        try:
            with _counted_start(workdir):
                yield
        finally:
            files_left = (path for path in workdir.rglob("*") if path.is_file())
            remaining = {path.relative_to(workdir).parts[0] for path in files_left}
            if new and remaining <= UNUSED:
                shutil.rmtree(workdir, ignore_errors=True)
                with suppress(OSError):  # others may have used them
                    for parent in new[1:]:
                        parent.rmdir()


@contextmanager
def _counted_start(workdir: Path) -> Iterator[None]:
    """Counts consecutive starts that failed, e.g. were killed, without a newer checkpoint.

    Raises CheckpointError after STARTS of them, so that a launcher stops repeating the command.
    """
    path = buckets.origin(workdir / "starts.json")
    checkpoints = complete_checkpoints(buckets.origin(workdir / "checkpoints" / "latest"))
    step = int(checkpoints[-1].name) if checkpoints else 0
    record = read_json(path, dict[str, int], "delete it", CheckpointError) if path.exists() else {}
    count = record.get("count", 0) if record.get("step") == step else 0
    if count >= STARTS:
        path.unlink()
        raise CheckpointError(
            f"{workdir}: {STARTS} starts in a row have failed without a newer checkpoint; see "
            f"{workdir / 'logs'} for the reason"
        )
    write_json(path, {"step": step, "count": count + 1})
    try:
        yield
    except (UserError, Interrupted):  # launchers do not repeat these
        path.unlink(missing_ok=True)
        raise
    path.unlink(missing_ok=True)


def provenance(
    config: Config, data_hash: str, classes: Sequence[str], images: int, shape: Shape
) -> dict[str, Any]:
    """The contents of `config.json`, which suffice to rebuild the model without the data."""
    return {
        "config": asdict(config),
        "data_hash": data_hash,
        "classes": len(classes),
        "class_names": [str(name) for name in classes],
        "images": images,
        "shape": list(shape),
        "x64": bool(jax.config.read("jax_enable_x64")),
        "commit": _commit(),
        "versions": versions(),
    }


def process_name() -> str:
    """Suffix of this process's file names."""
    return f"host-{jax.process_index()}"


def read_results(workdir: Path) -> dict[str, Any]:
    """The `results.json` of a run; empty if it is missing; CheckpointError if of another model."""
    path = workdir / "results.json"
    if not path.exists():
        return {}
    seal.file(workdir, path.name, error=CheckpointError, remedy=REMEDY)
    results: dict[str, Any] = read_json(path, dict[str, Any], "delete it", CheckpointError)
    identities.check_results(workdir, results, REMEDY)
    return results


def finish(workdir: Path, model: str, identity: Identity) -> None:
    """Seals a run whose reported model is in the sealed directory `model`."""
    with files.locked(workdir / seal.MANIFEST):
        # A checkpoint in a bucket is not among these files; its manifest is in the bucket.
        parts = [part for part in (model, *_embeddings(workdir)) if seal.sealed(workdir / part)]
        seal.close(workdir, KIND, names=_files(workdir), parts=parts, identity=identity)


@contextmanager
def updated(workdir: Path, replaced: str) -> Iterator[None]:
    """Context that replaces the files and directories of a finished run whose names start with
    `replaced`.

    Meanwhile, the manifest does not name them, so after an error or a kill they count neither as
    changed nor as complete.
    """

    def seal_again(names: list[str], parts: list[str]) -> None:
        with files.locked(workdir / seal.MANIFEST):
            manifest = seal.read_manifest(workdir, KIND, error=CheckpointError, remedy=REMEDY)
            unchanged = {k: v for k, v in manifest.files.items() if not k.startswith(replaced)}
            new = seal.digests(workdir, [name for name in names if name.startswith(replaced)])
            unchanged_parts = [part for part in manifest.parts if not part.startswith(replaced)]
            new_parts = [part for part in parts if part.startswith(replaced)]
            seal.close(
                workdir,
                KIND,
                known=unchanged | new,
                parts=unchanged_parts + new_parts,
                identity=manifest.identity,
            )

    finished = seal.sealed(workdir)
    if finished:
        seal_again([], [])
    yield
    if finished:
        seal_again(_files(workdir), _embeddings(workdir))


def _embeddings(workdir: Path) -> list[str]:
    manifests = workdir.glob(f"embeddings/*/{seal.MANIFEST}")
    return sorted(path.parent.relative_to(workdir).as_posix() for path in manifests)


def _files(workdir: Path) -> list[str]:
    paths = (path for pattern in FILES for path in workdir.glob(pattern) if path.is_file())
    return sorted(path.relative_to(workdir).as_posix() for path in paths if path.name[0] != ".")


def is_finished(workdir: Path, steps: int) -> bool:
    """Whether a run has completed its steps; CheckpointError if one of its files has changed."""
    if not seal.sealed(workdir) or read_results(workdir).get("steps") != steps:
        return False
    seal.read(workdir, KIND, exact=False, error=CheckpointError, remedy=REMEDY)
    return True


def unfinished(workdir: Path, step: int, *, reported: bool) -> str:
    """A warning if the run of the `reported` model, or of this step, has not finished; or empty."""
    train = read_config(workdir)["config"]["train"]
    length = {key: train.get(key) for key in ("steps", "epochs")}
    results = read_results(workdir)
    finished = results and results.get("length", length) == length
    if finished and (not reported or results.get("step") == step):
        return ""
    length_text = " and ".join(f"{count} {unit}" for unit, count in length.items() if count)
    return f"{workdir}: this run of {length_text} has not finished; its model is from step {step}"


def versions() -> dict[str, str]:
    """The versions of this package and of libraries that affect results, by name."""
    return {"dml_jax": __version__, **{name: version(name) for name in LIBRARIES}}


def source_digest() -> str:
    """SHA-256 of the names and contents of this package's Python files."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)} {sha256(path)}".encode())
    return digest.hexdigest()


def _commit() -> str | None:
    """The git commit of this package, with "-dirty" for local changes; None outside a checkout."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    # On a full disk, git would leave locks behind.
    command = ["git", "--no-optional-locks", "describe", "--always", "--abbrev=40"]
    command += ["--exclude=*", "--dirty"]
    with suppress(OSError, subprocess.CalledProcessError):
        result = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        return result.stdout.strip()
    return None
