"""The work directory of a run: one configuration, one writing process at a time."""

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

# What a failed start leaves.
UNUSED = {".config.json.lock", "starts.json", "config.json", "logs", "tensorboard"}
STARTS = 5  # how many may fail without a newer checkpoint
SHOWN = 5  # differences that an error message lists
LIBRARIES = ("jax", "flax", "optax", "orbax-checkpoint", "grain", "numpy", "pillow")
CHANGED = "has changed since this run started"
DATA = f"the data set {CHANGED}; give another --workdir"
# The facts, besides the configuration, that distinguish runs, and what a difference means.
WHAT = {
    **dict.fromkeys(("data_hash", "classes", "images", "shape"), DATA),
    "teacher": f"the teacher {CHANGED}; give another --workdir",
    "x64": f"JAX_ENABLE_X64, and so the precision, {CHANGED}; set it as it was",
}

# Files of others that a run would replace or delete.
REPLACED = (seal.MANIFEST, "metrics.jsonl", "results.json", "report.html")
KIND = "run"
# Files of a finished run besides its sealed directories.
FILES = (
    *("config.json", "metrics.jsonl", "timing.jsonl", "results.json", "queries.npz"),
    *("report.html", "figures/*", "analysis/*"),
)
REMEDY = (
    f"restore it from a copy, or delete {seal.MANIFEST} to have the same command evaluate and "
    "write it again"
)

Count = Annotated[StrictInt, Ge(1), Lt(2**31)]


@dataclass
class RunRecord:
    """The entries of config.json that are read again, see `provenance`."""

    config: dict[str, Any]
    data_hash: str
    classes: Count
    images: Count
    shape: Annotated[tuple[Count | str, ...], AfterValidator(arrays.check)]
    x64: bool = False
    teacher: dict[str, Any] | None = None
    class_names: list[str] | None = None  # names of the training classes


def read_config(workdir: Path) -> dict[str, Any]:
    """The `config.json` of a work directory."""
    path = workdir / "config.json"
    if not path.exists():
        raise CheckpointError(
            f"{workdir}: is not a work directory (no config.json) and holds no converted weights "
            "(no weights.json); give that of a run, published weights converted by `dml-jax "
            "convert`, or lite0"
        )
    seal.file(workdir, path.name, error=CheckpointError, remedy=REMEDY)
    remedy = "restore it from a copy, or give another --workdir"
    return read_json(path, RunRecord, remedy, CheckpointError)


def run_config(workdir: Path, *, trust_code: bool = False) -> Config:
    """The configuration of a run; ConfigError if it is invalid or needs code without trust."""
    values = read_config(workdir)["config"]
    import_code(values) if trust_code else check_stored(values)
    return resolve(values)


def identity(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that distinguish runs: configuration, data, precision and teacher."""
    return {key: facts[key] for key in ("config", *WHAT) if key in facts}


def check_same_run(workdir: Path, here: Mapping[str, Any], *, selecting: bool = True) -> None:
    """Raises CheckpointError if a directory or its newest checkpoint has another `identity`.

    Options that change no bit of the model may differ, and a longer run may make the same steps
    first. The test-time variant may differ, too, unless models are still selected (`selecting`).
    A directory without a run must not have files that one replaces.
    """
    checkpoints = complete_checkpoints(buckets.origin(workdir / "checkpoints" / "latest"))
    if (workdir / "config.json").exists():
        check_same_facts(workdir, read_config(workdir), here, selecting=selecting)
    elif taken := [name for name in REPLACED if not checkpoints and (workdir / name).exists()]:
        raise CheckpointError(
            f"--workdir={workdir}: holds {taken[0]}, but no run; give another --workdir"
        )
    for checkpoint in reversed(checkpoints):
        try:
            run = seal.stated(checkpoint, error=CheckpointError).about.get("run", {})
        except CheckpointError:  # restoring a checkpoint names the remedy
            continue
        check_same_facts(checkpoint, run, here, selecting=selecting)
        break


def check_same_facts(
    where: Path, stored: Mapping[str, Any], here: Mapping[str, Any], *, selecting: bool = True
) -> None:
    """Raises CheckpointError if the stored `identity` belongs to another run."""
    if "config" in here:
        config = stored.get("config")
        config = config if isinstance(config, Mapping) else {}
        _check_same_config(where, config, here["config"], selecting)
    for key, what in WHAT.items():
        before, now = stored.get(key, False if key == "x64" else None), here.get(key)
        if isinstance(before, Mapping) and isinstance(now, Mapping):  # teachers
            before, now = before.get("sha256"), now.get("sha256")
        if key in here and before != now:
            raise CheckpointError(f"{where}: {what}")


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
    # Otherwise config.json was edited by hand.
    known = all(isinstance(old.get(key), int) for key in LENGTH)
    longer = not keys and known and _may_be_longer(new, old["train.steps"])
    for key in LENGTH:
        if old.get(key) != new[key] and not (longer and old[key] < new[key]):
            keys.append(key)
    if keys:
        # Another method has other options.
        shown = ["method.name"] if "method.name" in keys else keys[:SHOWN]
        differences = ", ".join(
            f"{key} ({old.get(key)!r} there, {new.get(key)!r} here)" for key in shown
        )
        raise CheckpointError(
            f"{where}: belongs to a run of another configuration: {differences}; give another "
            "--workdir"
        )


def _resolved(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """A configuration with defaults for missing options."""
    with suppress(ConfigError):
        return asdict(resolve(config))
    return config


def _may_be_longer(config: Mapping[str, Any], steps: int) -> bool:
    """Whether a run of `steps` steps (0: of epochs) is the beginning of a longer one."""
    every = config["train.evaluate_every"]
    regular = not every
    if steps:
        regular = bool(every) and not config["train.warmup_epochs"] and steps % every == 0
    fixed = config["train.schedule"] in ("constant", "step")  # whatever the length
    select = config["train.select"]
    return fixed and select != "folds" and (select == "last" or regular)


@contextmanager
def locked(workdir: Path) -> Iterator[None]:
    """Creates the directory and locks it; removes what it has created if nothing was written."""
    new = [path for path in (workdir, *workdir.parents) if not path.exists()]
    with ExitStack() as held:
        try:
            workdir.mkdir(parents=True, exist_ok=True)
            held.enter_context(files.locked(workdir / "config.json", wait=False))
            buckets.take_over(workdir)
        except UserError:
            raise CheckpointError(f"--workdir={workdir}: another run is using it") from None
        except FileNotFoundError:  # in a file system that has no new directories
            raise CheckpointError(
                f"--workdir={workdir}: cannot be created; give a directory elsewhere"
            ) from None
        try:
            with _counted_start(workdir):
                yield
        finally:
            files_left = (path for path in workdir.rglob("*") if path.is_file())
            written = {path.relative_to(workdir).parts[0] for path in files_left}
            if new and written <= UNUSED:
                shutil.rmtree(workdir, ignore_errors=True)
                with suppress(OSError):  # others may have used them
                    for parent in new[1:]:
                        parent.rmdir()


@contextmanager
def _counted_start(workdir: Path) -> Iterator[None]:
    """Counts successive starts that failed, e.g. were killed, without a newer checkpoint.

    Raises CheckpointError if there are STARTS of them already, so that a launcher that repeats the
    command gives up.
    """
    path = buckets.origin(workdir / "starts.json")
    complete = complete_checkpoints(buckets.origin(workdir / "checkpoints" / "latest"))
    step = int(complete[-1].name) if complete else 0
    before = read_json(path, dict[str, int], "delete it", CheckpointError) if path.exists() else {}
    count = before.get("count", 0) if before.get("step") == step else 0
    if count >= STARTS:
        path.unlink()
        raise CheckpointError(
            f"{workdir}: {STARTS} starts in a row have failed without a newer checkpoint; see "
            f"{workdir / 'logs'} for the reason"
        )
    write_json(path, {"step": step, "count": count + 1})
    try:
        yield
    except (UserError, Interrupted):  # nothing that a launcher repeats in vain
        path.unlink(missing_ok=True)
        raise
    path.unlink(missing_ok=True)


def provenance(
    config: Config, data_hash: str, classes: Sequence[str], images: int, shape: Shape
) -> dict[str, Any]:
    """The contents of `config.json`, from which the model can be rebuilt without the data."""
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
    """Suffix of the names of this process's files."""
    return f"host-{jax.process_index()}"


def read_results(workdir: Path) -> dict[str, Any]:
    """The `results.json` of a run, which must be of its model; empty if there is none."""
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
        # A checkpoint in a bucket is not among these files, and has a manifest there.
        parts = [part for part in (model, *_embeddings(workdir)) if seal.sealed(workdir / part)]
        seal.close(workdir, KIND, names=_files(workdir), parts=parts, identity=identity)


@contextmanager
def updated(workdir: Path, replaced: str) -> Iterator[None]:
    """Context that replaces those files and directories of a finished run whose names start with
    `replaced`.

    Meanwhile the manifest does not name them, so that none of them counts as changed, or as whole,
    if an error or a kill ends the context.
    """

    def seal_again(names: list[str], parts: list[str]) -> None:
        with files.locked(workdir / seal.MANIFEST):
            before = seal.stated(workdir, KIND, error=CheckpointError, remedy=REMEDY)
            others = {k: v for k, v in before.files.items() if not k.startswith(replaced)}
            new = seal.digests(workdir, [name for name in names if name.startswith(replaced)])
            kept = [part for part in before.parts if not part.startswith(replaced)]
            added = [part for part in parts if part.startswith(replaced)]
            seal.close(
                workdir, KIND, known=others | new, parts=kept + added, identity=before.identity
            )

    finished = seal.sealed(workdir)
    if finished:
        seal_again([], [])
    yield
    if finished:
        seal_again(_files(workdir), _embeddings(workdir))


def _embeddings(workdir: Path) -> list[str]:
    found = workdir.glob(f"embeddings/*/{seal.MANIFEST}")
    return sorted(path.parent.relative_to(workdir).as_posix() for path in found)


def _files(workdir: Path) -> list[str]:
    found = (path for pattern in FILES for path in workdir.glob(pattern) if path.is_file())
    return sorted(path.relative_to(workdir).as_posix() for path in found if path.name[0] != ".")


def is_finished(workdir: Path, steps: int) -> bool:
    """Whether a run has made all its steps; CheckpointError if one of its files has changed."""
    if not seal.sealed(workdir) or read_results(workdir).get("steps") != steps:
        return False
    seal.read(workdir, KIND, exact=False, error=CheckpointError, remedy=REMEDY)
    return True


def unfinished(workdir: Path, step: int, *, reported: bool) -> str:
    """A sentence if the run of a model, the `reported` one or of this step, has not finished."""
    train = read_config(workdir)["config"]["train"]
    length = {key: train.get(key) for key in ("steps", "epochs")}
    results = read_results(workdir)
    finished = results and results.get("length", length) == length
    if finished and (not reported or results.get("step") == step):
        return ""
    wanted = " and ".join(f"{count} {unit}" for unit, count in length.items() if count)
    return f"{workdir}: this run of {wanted} has not finished; its model is of step {step}"


def versions() -> dict[str, str]:
    """The versions of this package and of the libraries that affect its results, by name."""
    return {"dml_jax": __version__, **{name: version(name) for name in LIBRARIES}}


def source_digest() -> str:
    """SHA-256 of the Python files of this package, with their names."""
    root = Path(__file__).parents[2]
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        digest.update(f"{path.relative_to(root)} {sha256(path)}".encode())
    return digest.hexdigest()


def _commit() -> str | None:
    """The git commit of this package, with "-dirty" if files differ; None outside a checkout."""
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    # Locks would be left behind on a full disk.
    command = ["git", "--no-optional-locks", "describe", "--always", "--abbrev=40"]
    command += ["--exclude=*", "--dirty"]
    with suppress(OSError, subprocess.CalledProcessError):
        ran = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
        return ran.stdout.strip()
    return None
