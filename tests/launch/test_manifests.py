"""Scripts, manifests and the Dockerfile fit the project and themselves; which devices a process
gets."""

import json
import os
import re
import shlex
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from jax._src import clusters

from dml_jax import main
from dml_jax.commands import embed
from dml_jax.config import files as config_files
from dml_jax.train.distributed import process_group
from tests.processes import ROOT, executable, wait_until

LAUNCH = ROOT / "launch"
SCRIPTS = [*LAUNCH.glob("*.sh"), *LAUNCH.glob("*.sbatch")]
JOBSETS = [*LAUNCH.glob("jobset_*.yaml")]
PRINTED = 'printf "%s\\n" "$@"'


def sbatch(folder: Path, script: str, *arguments: str, **variables: str) -> tuple[int, list[str]]:
    """The exit code and the lines of a job whose programs are those in a folder."""
    path = f"{folder}:{os.environ['PATH']}"
    job = {"SLURM_JOB_ID": "77", "SLURM_CPUS_PER_TASK": "12", "SLURM_JOB_NUM_NODES": "2"}
    command = ["bash", LAUNCH / script, *arguments]
    done = subprocess.run(command, env=job | variables | {"PATH": path}, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_syntax(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script], capture_output=True, text=True).stderr == ""


@pytest.mark.parametrize("code", [143, 75, 134, 1, 2, 0])
def test_what_slurm_requeues(code: int, tmp_path: Path) -> None:
    executable(tmp_path / "srun", f"exit {code}")
    executable(tmp_path / "scontrol", "echo $@")
    requeued = [] if code in (0, 2) else ["requeue 77"]
    assert sbatch(tmp_path, "slurm.sbatch", "any.py") == (code, requeued)


def test_slurm_copies_the_data_to_the_nodes(tmp_path: Path) -> None:
    executable(tmp_path / "srun", f'case $3 in cp) shift 2; exec "$@";; *) {PRINTED};; esac')
    (tmp_path / "data" / "sop").mkdir(parents=True)
    (tmp_path / "data" / "sop" / "manifest.json").write_text("{}")
    (tmp_path / "node").mkdir()
    given = {"STAGE": str(tmp_path / "data" / "sop"), "SLURM_TMPDIR": str(tmp_path / "node")}
    for _ in range(2):
        _, lines = sbatch(tmp_path, "slurm.sbatch", "any.py", **given)
        assert lines[-1] == f"--config.data.path={tmp_path / 'node' / 'sop'}"
    assert (tmp_path / "node" / "sop" / "manifest.json").read_text() == "{}"


def test_slurm_starts_a_task_for_each_gpu(tmp_path: Path) -> None:
    """Every task sees the GPUs of its node, or NCCL could not use NVLink between them."""
    text = (LAUNCH / "slurm.sbatch").read_text()
    assert "--ntasks-per-node=8\n#SBATCH --gpus-per-node=8\n" in text
    assert "--signal=TERM@300\n#SBATCH --requeue\n" in text  # before the time limit
    executable(tmp_path / "srun", PRINTED)
    _, lines = sbatch(tmp_path, "slurm.sbatch", "any.py")
    given = lines[: lines.index(".venv/bin/python")]
    assert {"--cpus-per-task=12", "--gpu-bind=none"} <= {*given}  # a site may add gpus-per-task


def test_arguments_of_the_slurm_job_that_embeds(tmp_path: Path) -> None:
    executable(tmp_path / "srun", f"echo $RAY_AUTH_MODE ${{#RAY_AUTH_TOKEN}}; {PRINTED}")
    _, lines = sbatch(tmp_path, "slurm_ray.sbatch", "--model=w", "a folder")
    assert lines[0] == "token 64"
    assert {"--cpus-per-task=12", "--min-nodes=2", "--num-cpus=12"} <= {*lines}
    rest = lines[lines.index("--") + 1 :]
    assert rest[:4] == ["python", "-m", "dml_jax", "embed"]
    options = embed.parser().parse_args(rest[4:])
    assert (options.engine, options.address, options.paths) == ("ray", "auto", ["a folder"])


@pytest.mark.parametrize(("codes", "expected"), [("0 0", 0), ("0 75", 75), ("2 75", 2), ("75 2", 2), ("143 143", 143)])
def test_a_process_for_each_gpu(codes: str, expected: int, tmp_path: Path) -> None:
    """With a stand-in for Python, which waits for SIGTERM if it is to end with 143."""
    executable(
        tmp_path / ".venv/bin/python",
        f"codes=({codes}); code=${{codes[$JAX_LOCAL_DEVICE_IDS]}}\n"
        '[ "$code" -ne 143 ] || trap "sleep 0.2; exit 143" TERM\n'
        'echo "$JAX_LOCAL_DEVICE_IDS $*" > ready-$JAX_LOCAL_DEVICE_IDS\n'
        'while [ "$code" -eq 143 ]; do sleep 0.1; done; exit "$code"',
    )
    command = ["bash", LAUNCH / "each_gpu.sh", "2", "3", "1", "--config=any.py"]
    started = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
    if expected == 143:
        wait_until(lambda: sum(f.stat().st_size > 0 for f in tmp_path.glob("ready-*")) == 2, 0.05)
        os.killpg(started.pid, signal.SIGTERM)
    assert started.wait(60) == expected
    for gpu in range(2):
        arguments = f"-m dml_jax.main --processes=6 --process={2 + gpu} --config=any.py"
        assert (tmp_path / f"ready-{gpu}").read_text() == f"{gpu} {arguments}\n"


def mounts(pod: dict[str, Any]) -> set[str]:
    """The paths that the only container of a pod mounts, which are its volumes."""
    (container,) = pod["containers"]
    found = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert found.keys() == {volume["name"] for volume in pod["volumes"]}
    return {*found.values()}


def inside(paths: Any, folders: set[str]) -> bool:
    return all(any(path.startswith(f"{folder}/") for folder in folders) for path in paths)


@pytest.mark.parametrize("file", JOBSETS, ids=lambda path: path.stem)
def test_jobsets(file: Path) -> None:
    """The command is valid, names and numbers that must agree do, and a pod has the cores and the
    shared memory that reading needs."""
    jobset = yaml.safe_load(file.read_text())
    name, (group,) = jobset["metadata"]["name"], jobset["spec"]["replicatedJobs"]
    job = group["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    args, pods, per_pod = container["args"], job["completions"], 1
    limits, requests = container["resources"]["limits"], container["resources"]["requests"]
    if gpus := limits.get("nvidia.com/gpu"):
        # Signals go to all processes; the first arguments of the script are the sizes of the job.
        assert container["command"] == ["tini", "-g", "--", "bash", "launch/each_gpu.sh"]
        assert args[:3] == [str(gpus), str(pods), "$(JOB_COMPLETION_INDEX)"]
        per_pod, args = gpus, args[3:]
    else:  # replaces the ENTRYPOINT
        assert container["command"] == ["tini", "--", ".venv/bin/python", "-m", "dml_jax.main"]
    arguments = [argument.replace("$(JOB_COMPLETION_INDEX)", "1") for argument in args]
    options, overrides = main.parser().read(arguments)
    if gpus:  # one process per GPU, all of which see the pod's cores
        options.processes, options.process = per_pod * pods, per_pod * pods - 1
    main.check_options(options)
    devices = pods * (gpus or limits["google.com/tpu"])
    config, _, variant = options.config.rpartition(":")
    assert variant.endswith(f"-devices{devices}")
    resolved = config_files.resolved(str(ROOT / options.config), {})
    assert resolved.name == f"{Path(config).stem}-{variant}"
    assert (resolved.data.batch_size % devices, requests.keys()) == (0, {"cpu", "memory"})
    at = {each["mountPath"]: each["name"] for each in container["volumeMounts"]}
    (shared,) = (each for each in pod["volumes"] if each["name"] == at.get("/dev/shm"))
    room = int(shared["emptyDir"]["sizeLimit"].removesuffix("Gi")) * 2**30
    data, workers = resolved.data, int(requests["cpu"]) - per_pod  # one core per process trains
    assert int(overrides.get("data.workers", workers)) == workers // per_pod
    images = data.batch_size // (per_pod * pods)
    assert 3 * workers * images * data.image_size**2 * 3 < room  # each holds three batches
    if options.coordinator != "auto":
        assert options.coordinator.startswith(f"{name}-{group['name']}-0-0.{name}:")
        assert options.processes == per_pod * pods
        assert int(options.coordinator.rpartition(":")[2]) > 1023  # others only root may open
        affinity = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        labels = affinity[0]["labelSelector"]["matchLabels"]
        assert labels == {"jobset.sigs.k8s.io/jobset-name": name}
    # All pods restart together, by the JobSet.
    assert (job["parallelism"], job["backoffLimit"], pod["restartPolicy"]) == (pods, 0, "Never")
    assert restart_action(jobset, container["name"], 2) == "FailJobSet"
    unlimited = "RestartJobSetAndIgnoreMaxRestarts"
    assert restart_action(jobset, container["name"], 143) == unlimited
    assert restart_action(jobset, container["name"], 137, disrupted=True) == unlimited
    for code in (1, 75, 134, 137):
        assert restart_action(jobset, container["name"], code) == "RestartJobSet"
    variables = {each["name"]: each["value"] for each in container["env"]}
    paths = [value for value in overrides.values() if "/" in value]
    cache = variables["JAX_COMPILATION_CACHE_DIR"]
    assert inside((options.workdir, *paths, cache), mounts(pod))
    assert variables["XDG_CACHE_HOME"] in mounts(pod)
    assert jobset["spec"]["network"] == {"enableDNSHostnames": True, "subdomain": name}
    # Pods stay pending that ask for a resource or claim without a provider.
    provided = {"cpu", "memory", "nvidia.com/gpu", "google.com/tpu"}
    claims = {volume.get("persistentVolumeClaim", {}).get("claimName") for volume in pod["volumes"]}
    unknown = ({*limits, *requests} | claims) - provided - {None}
    guide = (ROOT / "docs/guides/cluster.md").read_text()
    assert {word for word in unknown if f"`{word}`" not in guide} == set()


def restart_action(jobset: dict[str, Any], container: str, code: int, *, disrupted: bool = False) -> str:
    """What JobSet does when a container ends with this code: the first rules that match, of the Job
    and the JobSet."""
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    for index, rule in enumerate(job["podFailurePolicy"]["rules"]):
        exits, conditions = rule.get("onExitCodes"), rule.get("onPodConditions", [])
        assert not exits or (exits["containerName"], exits["operator"]) == (container, "In")
        if (exits and code in exits["values"]) or (disrupted and conditions):
            assert rule["action"] == "FailJob"
            reason = "PodFailurePolicy"
            message = f"exit code {code} matching FailJob rule at index {index}"
            break
    for rule in jobset["spec"]["failurePolicy"]["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        if reason in rule["onJobFailureReasons"] and any(re.search(p, message) for p in patterns):
            return str(rule["action"])
    return "RestartJobSet"  # the default of JobSet


def test_ray_job() -> None:
    """The command is valid, sees its volumes and has no GPU of its own; the workers have some, also
    on spot nodes."""
    job = yaml.safe_load((LAUNCH / "rayjob.yaml").read_text())["spec"]
    program, *arguments = job["entrypoint"].split()
    assert [program, *arguments[:3]] == ["/app/.venv/bin/python", "-m", "dml_jax", "embed"]
    options = embed.parser().parse_args(arguments[3:])
    assert (options.engine, options.address) == ("ray", None)  # that of the job
    cluster = job["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"]
    assert cluster["headGroupSpec"]["rayStartParams"]["num-cpus"] == "0"
    head, worker = (group["template"]["spec"] for group in (cluster["headGroupSpec"], workers))
    tolerated = {each["key"] for each in worker["tolerations"]}
    assert {"nvidia.com/gpu", "cloud.google.com/gke-spot"} < tolerated
    for pod in (head, worker):
        limits = pod["containers"][0]["resources"]["limits"]
        assert ("nvidia.com/gpu" in limits) == (pod is worker)
        assert inside((options.model, options.output, *options.paths), mounts(pod))


def test_dockerfile() -> None:
    text = (LAUNCH / "Dockerfile").read_text()
    lines = [line.split(" ", 1) for line in text.splitlines() if line[:1] not in "#"]
    ignored = (LAUNCH / "Dockerfile.dockerignore").read_text()
    for source in (s for word, rest in lines if word == "COPY" for s in shlex.split(rest)[:-1]):
        assert [*ROOT.glob(source)], source
        assert f"!{source}\n" in ignored
    assert re.search(r"^ARG BASE=python:3\.11-slim@sha256:[0-9a-f]{64}$", text, re.MULTILINE)
    instructions = dict(lines)
    assert (instructions["USER"], instructions["ENTRYPOINT"]) == ("1000", '["tini", "--"]')
    config = main.parser().read(json.loads(instructions["CMD"])[3:])[0].config
    assert (ROOT / config).is_file()


GPUS = "CUDA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("tasks", "more", "devices"),
    [
        (16, {GPUS: "0,1,2,3,4,5,6,7"}, [7]),  # launch/slurm.sbatch, also with --gpus-per-task=1
        (2, {}, []),  # one task per node
        (2, {GPUS: "0,1,2,3"}, []),
        (8, {GPUS: "0,1,2,3"}, [3]),  # four tasks share them
        (8, {GPUS: "0"}, []),  # srun --gpus-per-task=1: each sees its own, as number 0
        (2, {"JAX_LOCAL_DEVICE_IDS": "1,2"}, [1, 2]),
    ],
)
def test_each_slurm_task_sees_its_devices(
    tasks: int, more: dict[str, str], devices: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What JAX makes of the variables of the last task on two nodes; [] hides no device."""
    job = {
        "JOB_ID": 4097, "STEP_NODELIST": "gpu[07-12],cpu3", "NTASKS": tasks, "PROCID": tasks - 1,
        "LOCALID": tasks // 2 - 1, "STEP_NUM_NODES": 2,
    }  # fmt: skip
    for name, value in ({f"SLURM_{name}": value for name, value in job.items()} | more).items():
        monkeypatch.setenv(name, str(value))
    given = process_group.local_devices()
    if given is None and "JAX_LOCAL_DEVICE_IDS" in more:  # read by JAX before it asks the cluster
        given = [int(index) for index in more["JAX_LOCAL_DEVICE_IDS"].split(",")]
    detect = clusters.ClusterEnv.auto_detect_unset_distributed_params
    found = detect(None, None, None, given, None, 300)
    assert found == (f"gpu07:{65536 - 4096 + 1}", tasks, tasks - 1, devices)
