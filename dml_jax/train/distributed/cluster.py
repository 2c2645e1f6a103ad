"""How the processes of a run find each other, and which devices each of them uses."""

import os
import signal
import sys
import threading
import warnings
from importlib.util import find_spec
from types import FrameType

import jax

from dml_jax.errors import ConfigError, PeerError, exit_code_of
from dml_jax.files import reason

PATIENCE = 300.0  # seconds until all processes must have started
OTHERWISE = "give HOST:PORT, --processes and --process"


def connect(coordinator: str, processes: int, process: int) -> None:
    """Joins the other processes of the run; must come before any device is used.

    While this process waits, SIGTERM and Ctrl-C end it at once, also as PID 1 of a container, which has no default
    action for signals. If one of the others does not start, it ends with a message, as JAX would do with a crash.

    Args:
      coordinator: "host:port" of process 0, or "auto" to ask the cluster (Slurm, TPU pod, Kubernetes).
      processes: their number; ignored with "auto".
      process: index of this one; ignored with "auto".

    Raises:
      ConfigError: no cluster is found, or a package is missing.
      PeerError: the first process cannot be reached or has ended.
    """
    address = None if coordinator == "auto" else coordinator
    jax.config.update("jax_enable_preemption_service", False)  # it would replace the handlers of `stop_signals`
    end = threading.Timer(PATIENCE, _give_up, (coordinator,))
    end.daemon = True
    end.start()
    failures: list[Exception] = []

    def initialize() -> None:
        try:
            jax.distributed.initialize(
                address,
                processes if address else None,
                process if address else None,
                local_device_ids=local_devices(),
                initialization_timeout=int(2 * PATIENCE),
            )
        except Exception as error:
            failures.append(error)

    previous = {number: signal.signal(number, _leave) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Kubernetes environment detected")  # but no package: the error says so
            # Python handles signals in the main thread only, and not while that thread waits in JAX.
            thread = threading.Thread(target=initialize, daemon=True)
            thread.start()
            thread.join()
        if failures:
            raise failures[0]
    except ModuleNotFoundError as error:
        raise ConfigError(_missing(str(error.name))) from error
    except ValueError as error:
        if "KUBERNETES_SERVICE_HOST" in os.environ and not find_spec("kubernetes"):
            raise ConfigError(_missing("kubernetes")) from error
        raise ConfigError(f"--coordinator=auto: no Slurm, TPU pod or Kubernetes found; {OTHERWISE}") from error
    except Exception as error:  # JAX, kubernetes and requests raise many types of exceptions
        if exit_code_of(error) == os.EX_TEMPFAIL:
            raise PeerError(f"--coordinator={coordinator}: cannot be reached ({reason(error)})") from error
        raise ConfigError(f"--coordinator={coordinator}: cannot be used ({reason(error)})") from error
    finally:
        end.cancel()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _leave(number: int, frame: FrameType | None) -> None:
    print(f"stopped by {signal.Signals(number).name} before all processes had connected", file=sys.stderr, flush=True)
    os._exit(128 + number)


def _missing(package: str) -> str:
    return f"--coordinator=auto: needs the package {package} here; pip install {package}, or {OTHERWISE}"


def _give_up(coordinator: str) -> None:
    print(
        f"error: --coordinator={coordinator}: not all processes have connected within {PATIENCE:.0f} s; start all with "
        "the same address, which every host must be able to reach",
        file=sys.stderr,
        flush=True,
    )
    os._exit(os.EX_TEMPFAIL)


def local_devices() -> list[int] | None:
    """Arguments of `jax.distributed.initialize` about the devices of this process.

    Under Slurm, JAX would use the one with the task's index on its node. That is right only for tasks that share their
    devices: a task that is alone on its node has all of them, and one that Slurm has bound to a device sees no other.

    Returns:
      [] for all that are visible; None to leave it to JAX.
    """
    tasks, nodes = (os.environ.get(name) for name in ("SLURM_NTASKS", "SLURM_STEP_NUM_NODES"))
    bound = "," not in os.environ.get("CUDA_VISIBLE_DEVICES", ",")
    return [] if (tasks == nodes or bound) and "JAX_LOCAL_DEVICE_IDS" not in os.environ else None
