"""A Slurm cluster of two nodes on this machine: its daemons, in a folder and at ports of their own.

Nothing of a Slurm that the machine has is read or written. Both nodes are this machine under two
names, the first its own, by which JAX connects the processes. There are no control groups, so
Slurm finds the processes of a job by their parents. Debian's packages are slurm-wlm and munge;
the settings are explained in https://slurm.schedmd.com/archive/slurm-22.05.8/slurm.conf.html.
"""

import contextlib
import getpass
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from tests.programs import processes

ROOT = pathlib.Path(__file__).resolve().parents[2]
# Where Debian has the daemons, which is not in everybody's search path.
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"

SETTINGS = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdParameters=config_overrides
FirstJobId={job}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
ProctrackType=proctrack/linuxproc
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_min_interval=500000,batch_sched_delay=0,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
GresTypes=gpu
KillWait=60
SlurmdTimeout=30
ReturnToService=2
NodeName={host} NodeAddr=127.0.0.1 Port={first} CPUs=2 Gres=gpu:1
NodeName={host}x NodeAddr=127.0.0.1 Port={second} CPUs=2 Gres=gpu:1
PartitionName=ordinary Nodes=ALL PriorityTier=1 Default=YES
PartitionName=graceful Nodes=ALL PriorityTier=1 GraceTime=120
PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF
"""


def until(true: Callable[[], bool], *, what: str, seconds: float = 400) -> None:
    """Wait for a condition, as long as a loaded machine may need."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"waited in vain: {what}")
        time.sleep(0.1)


class Cluster:
    """The commands of a cluster that is there.

    Args:
        folder: of its settings, its state and its logs.
    """

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self.nodes = [socket.gethostname().split(".")[0]]
        self.nodes.append(f"{self.nodes[0]}x")
        self.environment = os.environ | {"SLURM_CONF": f"{folder}/slurm.conf", "PATH": PATH}
        self._daemons: dict[str, subprocess.Popen] = {}
        # Where this process is killed, the pipe to its standard input closes all the same.
        self._guard = subprocess.Popen(
            [sys.executable, "-m", __name__, folder], cwd=ROOT, stdin=subprocess.PIPE
        )

    def configure(self) -> None:
        """Write the settings and the key."""
        # JAX takes its coordinator's port from the job's number, which another cluster may have.
        ports = ("controller", "first", "second", "job")
        (self.folder / "slurm.conf").write_text(
            SETTINGS.format(
                folder=self.folder,
                host=self.nodes[0],
                user=getpass.getuser(),
                **{name: processes.free_port() for name in ports},
            )
        )
        (self.folder / "gres.conf").write_text("Name=gpu File=/dev/null\n")
        # Debian's slurmd loads the plugin although nothing asks it for a control group.
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for name in ("state", *(f"spool.{node}" for node in self.nodes)):
            (self.folder / name).mkdir()

    def start(self, name: str, *words: str, **variables: str) -> None:
        """Start a daemon with environment variables; its output is `name`.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            self._daemons[name] = subprocess.Popen(
                words,
                env=self.environment | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_node(self, node: str) -> None:
        """Start the daemon of a node, whose processes then all have its name."""
        self.start(node, "slurmd", "-D", "-N", node, SLURMD_NODENAME=node)

    def kill_node(self, node: str) -> None:
        """End a node at once, as a loss of power does: its daemon, and all that it has started."""
        _kill(self.folder, node)
        self._daemons.pop(node).wait()

    def run(self, *words: str, check: bool = True) -> str:
        """What a command prints."""
        done = subprocess.run(
            words, env=self.environment, capture_output=True, text=True, timeout=60
        )
        if check and done.returncode:
            raise RuntimeError(f"{words}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    def wait_for_nodes(self, state: str) -> None:
        """Wait until all nodes are `idle` or what else `sinfo` calls it."""
        count = len(self.nodes)

        def there() -> bool:
            shown = self.run("sinfo", "--noheader", "--Node", "--format=%N %t", check=False)
            return len({line for line in shown.splitlines() if line.endswith(f" {state}")}) == count

        try:
            until(there, what=f"nodes that are {state}", seconds=60)
        except TimeoutError as error:
            logs = [path.read_text()[-500:] for path in sorted(self.folder.glob("*.log"))]
            raise TimeoutError("\n".join([str(error), *logs])) from None

    def stop(self) -> None:
        """End the daemons and the jobs."""
        self._guard.stdin.close()
        for process in (self._guard, *self._daemons.values()):
            process.wait()

    def job(self, number: str) -> dict[str, str]:
        """What the controller knows of a job: JobState, Restarts, ExitCode, Reason, ..."""
        shown = self.run("scontrol", "show", "--oneliner", "job", number)
        return dict(re.findall(r"(\S+?)=(\S*)", shown))


@contextlib.contextmanager
def running(folder: pathlib.Path) -> Iterator[Cluster]:
    """A cluster whose nodes are idle; whatever happens, nothing of it outlives this."""
    cluster = Cluster(folder)
    cluster.configure()
    try:
        cluster.start("munged", *_munged(folder))
        until((folder / "munge.socket").exists, what="munged's socket", seconds=60)
        cluster.start("slurmctld", "slurmctld", "-D")
        for node in cluster.nodes:
            cluster.start_node(node)
        cluster.wait_for_nodes("idle")
        yield cluster
    finally:
        cluster.stop()


def _munged(folder: pathlib.Path) -> list[str]:
    # A folder of tests may be open to more readers than munged likes: --force.
    files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "seed-file": "seed"}
    named = [f"--{option}={folder}/munge.{suffix}" for option, suffix in files.items()]
    return ["munged", "--foreground", "--force", *named]


def _is_of(process: pathlib.Path, folder: pathlib.Path, node: str) -> bool:
    """Whether a process of /proc was started by the cluster, and on that node if one is named."""
    marks = [f"SLURM_CONF={folder}/slurm.conf"] + ([f"SLURMD_NODENAME={node}"] if node else [])
    try:
        variables = (process / "environ").read_bytes().split(b"\0")
    except OSError:  # it has ended, or is another user's
        return False
    return all(mark.encode() in variables for mark in marks)


def _kill(folder: pathlib.Path, node: str = "") -> None:
    """End processes, until no new ones appear; all are stopped first, so that none reports it."""
    while pids := [
        int(path.name)
        for path in pathlib.Path("/proc").glob("[0-9]*")
        if _is_of(path, folder, node)
    ]:
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        time.sleep(0.1)


if __name__ == "__main__":
    sys.stdin.read()  # until the process that has started this one closes it, or ends
    _kill(pathlib.Path(sys.argv[1]))
