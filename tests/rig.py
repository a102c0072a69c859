"""A standalone Spark cluster of several hosts on one machine, made of Linux namespaces, for tests as root.

Spark's master runs beside the test. Each worker runs on a host of its own: a network, a process table, a host name and
mounts. A host can be killed and its cable be pulled; the last host lacks the mount of one folder. The cables meet in a
switch, a namespace with a bridge. No namespace has a name: the kernel removes namespaces and cables with their last
process, and the processes die with the test session. A killed session therefore leaves nothing behind.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pyspark

from stack.launch.java import find_java
from stack.processes import end_processes, session_members
from stack.services import free_port
from tests.waiting import until

PATIENCE_S: Final = 120.0
TOOLS: Final = ("ip", "mount", "nsenter", "setpriv", "unshare")
HOST: Final = ("unshare", "--net", "--uts", "--mount", "--pid", "--mount-proc", "--kill-child")
#: The first process of a host, which reaps orphans. $0: the host's name, $1: its address, $2: a folder that is another,
#: empty one here, or "". The rest is the worker.
INIT: Final = """
hostname "$0" && ip link set lo up || exit 1
until ip link show eth0 >/dev/null 2>&1; do sleep 0.05; done
ip addr add "$1/24" dev eth0 && ip link set eth0 up || exit 1
[ -z "$2" ] || mount -t tmpfs none "$2" || exit 1
shift 2
"$@"
exit $?
"""


def reason_to_skip() -> str:
    """Why there can be no rig here; "" where there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        return f"no {', '.join(missing)}"
    trial = "ip link add bridge type bridge && ip link add cable type veth peer name device"
    process = subprocess.run([*HOST, "sh", "-c", trial], check=False, capture_output=True, text=True)
    return "" if process.returncode == 0 else f"no namespaces, bridges or cables can be made: {process.stderr.strip()}"


def _start(command: Sequence[str], folder: Path, log: Path, address: str = "") -> subprocess.Popen[bytes]:
    environment = {**os.environ, "JAVA_HOME": find_java(os.environ) or "", "SPARK_LOCAL_IP": address}
    with log.open("wb") as sink:
        return subprocess.Popen(
            ["setpriv", "--pdeathsig", "KILL", *command],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink, start_new_session=True,
        )  # fmt: skip


def _await_network(process: subprocess.Popen[bytes]) -> None:
    """Blocks until the process has a network of its own."""
    own_network, its = Path("/proc/self/ns/net"), Path(f"/proc/{process.pid}/ns/net")
    until(lambda: its.readlink() != own_network.readlink(), PATIENCE_S)


class Switch:
    """A bridge in a namespace of its own, and the cables that end there."""

    def __init__(self, folder: Path) -> None:
        self._process = _start(["unshare", "--net", "sleep", "infinity"], folder, folder / "switch.log")
        _await_network(self._process)
        self.ip("link add bridge type bridge")
        self.ip("link set bridge up")

    def ip(self, arguments: str) -> None:
        network = ["nsenter", f"--target={self._process.pid}", "--net"]
        process = subprocess.run([*network, "ip", *arguments.split()], check=False, capture_output=True, text=True)
        assert process.returncode == 0, f"ip {arguments}: {process.stderr}"

    def connect(self, cable: str, device: str, pid: int) -> None:
        """A cable from the bridge to a new device in the network of a process."""
        self.ip(f"link add {cable} type veth peer name {device} netns {pid}")
        self.ip(f"link set {cable} master bridge up")

    def remove(self) -> None:
        self._process.kill()
        self._process.wait()


class Host:
    """One host of the rig, with one Spark worker."""

    def __init__(self, rig: Rig, number: int, without: Path | None) -> None:
        self._rig, self._without = rig, without
        self.name = f"w{number}"
        self.address = f"{rig.network}.{number + 1}"
        self._starts = 0
        self._process: subprocess.Popen[bytes] | None = None

    def boot(self) -> None:
        """Starts the host. Its worker registers later."""
        self._starts += 1
        work = ["--cores", str(self._rig.cores), "--memory", "3g", "--work-dir", str(self._rig.folder / self.name)]
        worker = _spark_class("Worker", self.address, *work, self._rig.url)
        init = ["sh", "-c", INIT, self.name, self.address, str(self._without or ""), *worker]
        self._process = _start([*HOST, *init], self._rig.folder, self._log, self.address)
        _await_network(self._process)
        self._rig.switch.connect(self._cable, "eth0", self._process.pid)

    @property
    def _cable(self) -> str:
        """Another one at every start: the kernel takes its time to remove that of a host that died."""
        return f"{self.name}-{self._starts}"

    @property
    def _log(self) -> Path:
        return self._rig.folder / f"{self._cable}.log"

    def await_worker(self) -> None:
        registered = "Successfully registered with master"
        until(lambda: registered in self._log.read_text(errors="replace"), PATIENCE_S, or_else=self._log.read_text)

    def kill(self) -> None:
        """The host dies: the kernel kills every process on it at once, and its cable is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pull_cable(self) -> None:
        self._rig.switch.ip(f"link set {self._cable} down")

    def plug_in(self) -> None:
        self._rig.switch.ip(f"link set {self._cable} up")


class Rig:
    """The switch, Spark's master and the hosts."""

    def __init__(self, folder: Path, hosts: int, cores: int) -> None:
        self.folder, self.cores = folder, cores
        self.network = f"198.{18 + os.getpid() // 256 % 2}.{os.getpid() % 256}"  # RFC 2544: of no real network
        self.address = f"{self.network}.1"
        self.url = f"spark://{self.address}:{free_port()}"
        self.switch = Switch(folder)
        self.unmounted = folder / "mounts/out"  #: shared by all hosts but the last
        self.unmounted.mkdir(parents=True)
        self.hosts = [Host(self, number, self.unmounted if number == hosts else None) for number in range(1, hosts + 1)]
        self._master: subprocess.Popen[bytes] | None = None
        self._starts = 0

    def build(self) -> None:
        device = f"rig{os.getpid()}"
        self.switch.connect("test", device, os.getpid())
        for command in (f"ip addr add {self.address}/24 dev {device}", f"ip link set {device} up"):
            subprocess.run(shlex.split(command), check=True)
        self.start_master()
        for host in self.hosts:
            host.boot()
        for host in self.hosts:
            host.await_worker()

    def start_master(self) -> None:
        self._starts += 1
        log = self.folder / f"master-{self._starts}.log"
        master = _spark_class("Master", self.address, "--port", self.url.rpartition(":")[2])
        self._master = _start(master, self.folder, log, self.address)
        until(lambda: "I have been elected leader" in log.read_text(), PATIENCE_S, or_else=log.read_text)

    def stop_master(self) -> None:
        master, self._master = self._master, None
        if master is not None:
            end_processes(lambda: session_members(master.pid), grace_s=5)
            master.wait()

    def remove(self) -> None:
        for host in self.hosts:
            host.kill()
        self.stop_master()
        self.switch.remove()


@contextmanager
def standing_rig(folder: Path, hosts: int = 3, cores: int = 2) -> Iterator[Rig]:
    """A rig with every worker registered. Removed at the end, whatever happens."""
    rig = Rig(folder, hosts, cores)
    try:
        rig.build()
        yield rig
    finally:
        rig.remove()


def _spark_class(role: str, host: str, *arguments: str) -> Sequence[str]:
    program = Path(pyspark.__file__).parent / "bin/spark-class"
    name = f"org.apache.spark.deploy.{role.lower()}.{role}"
    return [str(program), name, "--host", host, "--webui-port", "0", *arguments]
