"""The environment of the processes of one run, for tests that start them."""

import socket


def free_port() -> int:
    """A port of this machine that nothing listens at."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


def environments(number: int = 2) -> list[dict[str, str]]:
    """The variables of each process, by which `partitioning.connect_processes` connects them."""
    shared = {
        "JAX_NUM_PROCESSES": str(number),
        "JAX_COORDINATOR_ADDRESS": f"localhost:{free_port()}",
    }
    return [{**shared, "JAX_PROCESS_ID": str(process)} for process in range(number)]
