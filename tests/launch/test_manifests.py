"""Scripts, manifests and the Dockerfile fit the project and themselves; which devices a process
gets."""

import json
import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import jax
import pytest
import yaml
from jax._src import clusters, xla_bridge

from dml_jax import main
from dml_jax.commands import embed
from dml_jax.config import files as config_files
from dml_jax.errors import ConfigError
from dml_jax.train.distributed import process_group
from tests.test_main import ROOT

LAUNCH = ROOT / "launch"


@pytest.mark.parametrize(
    "script", [*LAUNCH.glob("*.sh"), *LAUNCH.glob("*.sbatch")], ids=lambda path: path.name
)
def test_syntax(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script], capture_output=True, text=True).stderr == ""


@pytest.mark.parametrize(
    ("code", "requeued"), [(143, True), (75, True), (134, True), (1, True), (2, False), (0, False)]
)
def test_what_slurm_requeues(code: int, requeued: bool, tmp_path: Path) -> None:
    """With stand-ins for srun, which only ends with a code, and scontrol."""
    for name, line in (("srun", f"exit {code}"), ("scontrol", f"echo $@ > {tmp_path}/asked")):
        (tmp_path / name).write_text(f"#!/bin/sh\n{line}\n")
        (tmp_path / name).chmod(0o755)
    job = {"SLURM_JOB_ID": "77", "SLURM_CPUS_PER_TASK": "1"}
    path = {"PATH": f"{tmp_path}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", LAUNCH / "slurm.sbatch", "any.py"], env=job | path, check=False)
    assert done.returncode == code
    assert (tmp_path / "asked").exists() == requeued
    assert not requeued or (tmp_path / "asked").read_text() == "requeue 77\n"


def test_slurm_copies_the_data_to_the_nodes(tmp_path: Path) -> None:
    """With a stand-in for srun that executes the copy and prints the rest."""
    (tmp_path / "srun").write_text(
        '#!/bin/sh\ncase $3 in cp) shift 2; exec "$@";; *) printf "%s\\n" "$@";; esac\n'
    )
    (tmp_path / "srun").chmod(0o755)
    (tmp_path / "data" / "sop").mkdir(parents=True)
    (tmp_path / "data" / "sop" / "manifest.json").write_text("{}")
    (tmp_path / "node").mkdir()
    job = {
        "SLURM_JOB_ID": "77",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_CPUS_PER_TASK": "1",
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    given = {"STAGE": str(tmp_path / "data" / "sop"), "SLURM_TMPDIR": str(tmp_path / "node")}
    for _ in range(2):
        printed = subprocess.run(
            ["bash", LAUNCH / "slurm.sbatch", "any.py"],
            env=job | given,
            check=True,
            capture_output=True,
            text=True,
        )
        assert printed.stdout.splitlines()[-1] == f"--config.data.path={tmp_path / 'node' / 'sop'}"
    assert (tmp_path / "node" / "sop" / "manifest.json").read_text() == "{}"


@pytest.mark.parametrize("file", [*LAUNCH.glob("jobset_*.yaml")], ids=lambda path: path.stem)
def test_jobsets(file: Path) -> None:
    """The commands are valid, and names and numbers that must agree do; the schemas are not at
    hand."""
    jobset = yaml.safe_load(file.read_text())
    (group,) = jobset["spec"]["replicatedJobs"]
    job = group["template"]["spec"]
    pod = job["template"]["spec"]
    (container,) = pod["containers"]
    command, args = container["command"], container["args"]
    processes, index = job["completions"], "1"
    per_pod = 1
    if "launch/each_gpu.sh" in command:
        # Signals go to all processes; the arguments of the script are the sizes of the job.
        assert command == ["tini", "-g", "--", "bash", "launch/each_gpu.sh"]
        assert args[1:3] == [str(processes), "$(JOB_COMPLETION_INDEX)"]
        per_pod, args = int(args[0]), args[3:]
    else:  # replaces the ENTRYPOINT
        assert command == ["tini", "--", ".venv/bin/python", "-m", "dml_jax.main"]
    arguments = [argument.replace("$(JOB_COMPLETION_INDEX)", index) for argument in args]
    options, overrides = main.parser().read(arguments)
    if per_pod > 1:
        options.processes, options.process = per_pod * processes, per_pod * processes - 1
    main.check_options(options)
    limits, requests = container["resources"]["limits"], container["resources"]["requests"]
    devices = job["completions"] * next(
        limits[name] for name in ("nvidia.com/gpu", "google.com/tpu") if name in limits
    )
    file, _, variant = options.config.rpartition(":")
    assert variant.endswith(f"-devices{devices}")
    resolved = config_files.resolved(str(ROOT / options.config), {})
    assert resolved.name == f"{Path(file).stem}-{variant}"
    assert resolved.data.batch_size % devices == 0
    assert requests.keys() == {"cpu", "memory"}
    if "nvidia.com/gpu" in limits:  # one process per GPU, all of which see the pod's cores
        assert per_pod == limits["nvidia.com/gpu"]
        cores = int(requests["cpu"]) // per_pod
        assert overrides["data.workers"] == str(cores - 1)
    name = jobset["metadata"]["name"]
    if options.coordinator != "auto":
        assert options.coordinator.startswith(f"{name}-{group['name']}-0-0.{name}:")
        assert options.processes == per_pod * job["completions"]
        labels = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][
            0
        ]["labelSelector"]
        assert labels["matchLabels"] == {"jobset.sigs.k8s.io/jobset-name": name}
    assert job["completions"] == job["parallelism"]
    assert (job["backoffLimit"], pod["restartPolicy"]) == (
        0,
        "Never",
    )  # all pods restart together, by the JobSet
    assert restart_action(jobset, container["name"], 2) == "FailJobSet"
    assert restart_action(jobset, container["name"], 143) == "RestartJobSetAndIgnoreMaxRestarts"
    assert (
        restart_action(jobset, container["name"], 137, disrupted=True)
        == "RestartJobSetAndIgnoreMaxRestarts"
    )
    assert {restart_action(jobset, container["name"], code) for code in (1, 75, 134, 137)} == {
        "RestartJobSet"
    }
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
    environ = {each["name"]: each["value"] for each in container["env"]}
    paths = [value for value in overrides.values() if "/" in value]
    for path in (options.workdir, *paths, environ["JAX_COMPILATION_CACHE_DIR"]):
        assert any(path.startswith(f"{mount}/") for mount in mounts.values())
    assert environ["XDG_CACHE_HOME"] in mounts.values()
    assert jobset["spec"]["network"] == {"enableDNSHostnames": True, "subdomain": name}


@pytest.mark.parametrize("file", [*LAUNCH.glob("jobset_*.yaml")], ids=lambda path: path.stem)
def test_the_guide_explains_what_a_cluster_does_not_have(file: Path) -> None:
    """The scheduler leaves pods pending that ask for a resource or claim without a provider."""
    pod = yaml.safe_load(file.read_text())["spec"]["replicatedJobs"][0]["template"]["spec"][
        "template"
    ]["spec"]
    resources = pod["containers"][0]["resources"]
    unknown = {*resources["limits"], *resources["requests"]} - {
        *("cpu", "memory", "nvidia.com/gpu", "google.com/tpu")  # of Kubernetes, and of GKE's nodes
    }
    claims = [volume.get("persistentVolumeClaim", {}) for volume in pod["volumes"]]
    unknown |= {claim["claimName"] for claim in claims if claim}
    guide = (ROOT / "docs/topics/gke.md").read_text()
    assert {name for name in unknown if f"`{name}`" not in guide} == set()


def slurm_options(script: str) -> dict[str, str]:
    lines = re.findall(r"^#SBATCH --([a-z-]+)=?(.*)$", (LAUNCH / script).read_text(), re.MULTILINE)
    return dict(lines)


def test_slurm_starts_a_task_for_each_gpu(tmp_path: Path) -> None:
    """Every task sees the GPUs of its node, or NCCL could not use NVLink between them."""
    options = slurm_options("slurm.sbatch")
    assert options["ntasks-per-node"] == options["gpus-per-node"] == "8"
    (tmp_path / "srun").write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    (tmp_path / "srun").chmod(0o755)
    job = {"SLURM_CPUS_PER_TASK": "12", "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = ["bash", LAUNCH / "slurm.sbatch", "any.py"]
    printed = subprocess.run(command, env=job, check=True, capture_output=True, text=True).stdout
    given = printed.splitlines()[: printed.splitlines().index(".venv/bin/python")]
    assert {"--cpus-per-task=12", "--gpu-bind=none"} <= set(given)  # a site may add gpus-per-task


@pytest.mark.parametrize(
    ("codes", "expected"), [("0 0", 0), ("0 75", 75), ("2 75", 2), ("75 2", 2), ("143 143", 143)]
)
def test_a_process_for_each_gpu(codes: str, expected: int, tmp_path: Path) -> None:
    """With a stand-in for Python, which waits for SIGTERM if it is to end with 143."""
    python = tmp_path / ".venv/bin/python"
    python.parent.mkdir(parents=True)
    lines = (
        'echo "$JAX_LOCAL_DEVICE_IDS $*" > ready-$JAX_LOCAL_DEVICE_IDS',
        f"codes=({codes}); code=${{codes[$JAX_LOCAL_DEVICE_IDS]}}",
        '[ "$code" -ne 143 ] || { trap "sleep 0.2; exit 143" TERM; while :; do sleep 0.1; done; }',
        'exit "$code"',
    )
    python.write_text("\n".join(("#!/usr/bin/env bash", *lines, "")))
    python.chmod(0o755)
    command = ["bash", LAUNCH / "each_gpu.sh", "2", "3", "1", "--config=any.py"]
    started = subprocess.Popen(command, cwd=tmp_path, start_new_session=True)
    if expected == 143:
        while len(list(tmp_path.glob("ready-*"))) < 2:
            time.sleep(0.05)
        time.sleep(0.2)
        os.killpg(started.pid, signal.SIGTERM)
    assert started.wait(60) == expected
    for gpu in range(2):
        arguments = f"-m dml_jax.main --processes=6 --process={2 + gpu} --config=any.py"
        assert (tmp_path / f"ready-{gpu}").read_text() == f"{gpu} {arguments}\n"


def test_ray_job() -> None:
    """The command is valid, sees its volumes and has no GPU of its own; the workers have some, also
    on spot nodes."""
    job = yaml.safe_load((LAUNCH / "rayjob.yaml").read_text())["spec"]
    program, *arguments = job["entrypoint"].split()
    assert arguments[:3] == ["-m", "dml_jax", "embed"]
    options = embed.parser().parse_args(arguments[3:])
    assert (program, options.engine, options.address) == (
        "/app/.venv/bin/python",
        "ray",
        None,
    )  # that of the job
    cluster = job["rayClusterSpec"]
    (workers,) = cluster["workerGroupSpecs"]
    assert workers["replicas"] == workers["minReplicas"] == workers["maxReplicas"]
    head, worker = cluster["headGroupSpec"], workers["template"]["spec"]
    assert head["rayStartParams"]["num-cpus"] == "0"
    assert {"nvidia.com/gpu", "cloud.google.com/gke-spot"} < {
        each["key"] for each in worker["tolerations"]
    }
    for pod in (head["template"]["spec"], worker):
        (container,) = pod["containers"]
        assert ("nvidia.com/gpu" in container["resources"]["limits"]) == (pod is worker)
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert mounts.keys() == {volume["name"] for volume in pod["volumes"]}
        for path in (options.model, options.output, *options.paths):
            assert any(path.startswith(f"{mount}/") for mount in mounts.values())


def test_arguments_of_the_slurm_job_that_embeds(tmp_path: Path) -> None:
    """With a stand-in for srun, which prints what it is given."""
    (tmp_path / "srun").write_text(
        "#!/bin/sh\necho $RAY_AUTH_MODE ${#RAY_AUTH_TOKEN}; printf '%s\\n' \"$@\"\n"
    )
    (tmp_path / "srun").chmod(0o755)
    job = {
        "SLURM_CPUS_PER_TASK": "3",
        "SLURM_JOB_NUM_NODES": "2",
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    command = ["bash", LAUNCH / "slurm_ray.sbatch", "--model=w", "a folder"]
    printed = subprocess.run(
        command, env=job, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert printed[0] == "token 64"
    assert {"--cpus-per-task=3", "--min-nodes=2", "--num-cpus=3"} <= set(printed)
    rest = printed[printed.index("--") + 1 :]
    assert rest[:4] == ["python", "-m", "dml_jax", "embed"]
    options = embed.parser().parse_args(rest[4:])
    assert (options.engine, options.address, options.paths) == ("ray", "auto", ["a folder"])


def restart_action(
    jobset: dict[str, Any], container: str, code: int, *, disrupted: bool = False
) -> str:
    """What JobSet does when a container ends with this code: the first rules that match, of the Job
    and the JobSet."""
    job = jobset["spec"]["replicatedJobs"][0]["template"]["spec"]
    reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
    for index, rule in enumerate(job["podFailurePolicy"]["rules"]):
        exits, conditions = rule.get("onExitCodes"), rule.get("onPodConditions", [])
        if exits:
            assert (exits["containerName"], exits["operator"]) == (container, "In")
        if (exits and code in exits["values"]) or (disrupted and conditions):
            assert rule["action"] == "FailJob"
            reason, message = (
                "PodFailurePolicy",
                f"exit code {code} matching FailJob rule at index {index}",
            )
            break
    for rule in jobset["spec"]["failurePolicy"]["rules"]:
        patterns = rule.get("onJobFailureMessagePatterns", [""])
        if reason in rule["onJobFailureReasons"] and any(
            re.search(pattern, message) for pattern in patterns
        ):
            return str(rule["action"])
    return "RestartJobSet"  # the default of JobSet


def test_dockerfile() -> None:
    lines = [
        line.split(" ", 1)
        for line in (LAUNCH / "Dockerfile").read_text().splitlines()
        if line[:1] not in "#"
    ]
    for sources in (shlex.split(text)[:-1] for word, text in lines if word == "COPY"):
        assert all(list(ROOT.glob(source)) for source in sources), sources
    instructions = dict(lines)
    assert re.search(
        r"^BASE=python:3\.11-slim@sha256:[0-9a-f]{64}$",
        next(text for word, text in lines if word == "ARG"),
    )
    assert (instructions["USER"], instructions["ENTRYPOINT"]) == ("1000", '["tini", "--"]')
    ignored = (LAUNCH / "Dockerfile.dockerignore").read_text()
    for source in (
        source for word, text in lines if word == "COPY" for source in shlex.split(text)[:-1]
    ):
        assert f"!{source}\n" in ignored
    (command,) = (json.loads(text) for word, text in lines if word == "CMD")
    config = main.parser().read(command[3:])[0].config
    assert (ROOT / config).is_file()


def slurm(monkeypatch: pytest.MonkeyPatch, tasks: int, nodes: int, local: int, **more: str) -> None:
    """The variables that srun sets for the last task; those of task `local` of its node."""
    values = {
        "SLURM_JOB_ID": "4097",
        "SLURM_STEP_NODELIST": "gpu[07-12],cpu3",
        "SLURM_NTASKS": str(tasks),
        "SLURM_PROCID": str(tasks - 1),
        "SLURM_LOCALID": str(local),
        "SLURM_STEP_NUM_NODES": str(nodes),
        **more,
    }
    for name, value in values.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize(
    ("tasks", "nodes", "more", "devices"),
    [
        # launch/slurm.sbatch, also with --gpus-per-task=1
        (16, 2, {"CUDA_VISIBLE_DEVICES": "0,1,2,3,4,5,6,7"}, [7]),
        (2, 2, {}, []),  # one task per node
        (2, 2, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, []),
        (8, 2, {"CUDA_VISIBLE_DEVICES": "0,1,2,3"}, [3]),  # four tasks share them
        (
            8,
            2,
            {"CUDA_VISIBLE_DEVICES": "0"},
            [],
        ),  # srun --gpus-per-task=1: each sees its own, as number 0
        (2, 2, {"JAX_LOCAL_DEVICE_IDS": "1,2"}, [1, 2]),
    ],
)
def test_each_slurm_task_sees_its_devices(
    tasks: int,
    nodes: int,
    more: dict[str, str],
    devices: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What JAX makes of the variables; [] hides no device."""
    slurm(monkeypatch, tasks, nodes, tasks // nodes - 1, **more)
    given = process_group.local_devices()
    if given is None and "JAX_LOCAL_DEVICE_IDS" in more:  # read by JAX before it asks the cluster
        given = [int(index) for index in more["JAX_LOCAL_DEVICE_IDS"].split(",")]
    found = clusters.ClusterEnv.auto_detect_unset_distributed_params(
        None, None, None, given, None, 300
    )
    assert found == (f"gpu07:{65536 - 4096 + 1}", tasks, tasks - 1, devices)


@pytest.mark.filterwarnings("ignore:Kubernetes environment detected")
@pytest.mark.parametrize("variable", ["KUBERNETES_SERVICE_HOST", "NONE"])
def test_no_cluster(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        xla_bridge, "backends_are_initialized", lambda: False
    )  # other tests have used devices
    monkeypatch.setenv(variable, "10.0.0.1")
    with pytest.raises(
        ConfigError, match=r"no Slurm, TPU pod or Kubernetes can be asked .*; give HOST:PORT"
    ):
        process_group.connect("auto", 1, 0)


def test_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def initialize(*arguments: Any, **options: Any) -> None:
        raise ModuleNotFoundError("No module named 'requests'", name="requests")

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with pytest.raises(ConfigError, match="No module named 'requests'"):
        process_group.connect("auto", 1, 0)
