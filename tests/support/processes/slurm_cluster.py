"""A Slurm cluster of two nodes on this machine, out of Debian's packages, as root; everything in one folder.

`python tests/support/processes/slurm_cluster.py FOLDER` sets it up, prints the command that makes Slurm's
programs use it, and takes it down at the end of its input. All daemons listen on the loopback address alone.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil

PACKAGES = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "munged": "munge",
    "sbatch": "slurm-client",
    "srun": "slurm-client",
    "setpriv": "util-linux",
}
"""Debian's packages by a program that each has."""

NODES = ("n1", "n2")
CPUS = 2  # of each node, whatever the machine has
ARRAY = 5  # jobs of one array at most
START_S = 60.0

CONF = """
ClusterName=harness
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
PreemptType=preempt/partition_prio
PreemptMode=CANCEL
SlurmdTimeout=8
KillWait=2
MaxArraySize={array}
ReturnToService=2
UnkillableStepTimeout=10
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs={cpus}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs={cpus}
PartitionName=main Nodes=n[1-2] Default=YES MaxTime=60 State=UP OverSubscribe=NO
PartitionName=second Nodes=n2 MaxTime=60 State=UP
PartitionName=urgent Nodes=n[1-2] MaxTime=60 State=UP PriorityTier=9
"""


def why_not():
    """Return why no cluster can be set up here; empty where one can."""
    if os.geteuid():
        return "a Slurm cluster is set up by root"
    lacking = sorted({package for program, package in PACKAGES.items() if shutil.which(program) is None})
    return f"not installed: {', '.join(lacking)}" if lacking else ""


class SlurmCluster:
    """The cluster; a context manager. `environ` has what Slurm's programs need to find it."""

    def __init__(self, folder):
        self.folder = Path(folder).resolve()
        self.environ = {"SLURM_CONF": str(self.folder / "slurm.conf")}
        self._daemons = {}

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *exception):
        self.stop()

    def start(self):
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        values = {"host": socket.gethostname(), "ports": free_ports(3), "cpus": CPUS, "array": ARRAY}
        (self.folder / "slurm.conf").write_text(CONF.format(folder=self.folder, **values))
        key = self.folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(128))
        options = [f"--{one}-file={self.folder}/munge.{one}" for one in ("key", "pid", "log", "seed")]
        options.append(f"--socket={self.folder}/munge.socket")
        self._start("munged", "munged", "--foreground", "--force", *options)  # pytest's folder is private
        wait_until((self.folder / "munge.socket").exists, "munged")
        self._start("slurmctld", "slurmctld", "-D")
        for node in NODES:
            self.start_node(node)
        wait_until(lambda: self.node_states() == ["idle", "idle"], "the nodes")

    def start_node(self, node):
        self._start(node, "slurmd", "-D", "-N", node)

    def kill_node(self, node):
        """Kill a node's daemon and its jobs at once, as if it lost its power."""
        daemon = self._daemons.pop(node)
        daemon.kill()
        daemon.wait()
        for _ in range(3):  # processes may start others meanwhile
            for process in processes(SLURMD_NODENAME=node, **self.environ):
                with suppress(psutil.Error):
                    above = process.parent()
                    if above is not None and "slurmstepd" in " ".join(above.cmdline()):
                        above.kill()
                    process.kill()

    def node_states(self):
        return self.call("sinfo", "--Node", "--noheader", "--partition=main", "--format=%T").split()

    def call(self, *command):
        environ = {**os.environ, **self.environ}
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60).stdout

    def queue(self):
        """Return the ids of the jobs that wait or run: `12`, or `12_3` in an array."""
        return self.call("squeue", "--noheader", "--array", "--format=%i").split()

    def stop(self):
        if "slurmctld" in self._daemons:
            with suppress(subprocess.TimeoutExpired):
                self.call("scancel", "--user=root")
        for daemon in reversed(self._daemons.values()):
            daemon.terminate()
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(timeout=10)
        for daemon in self._daemons.values():
            daemon.kill()
            daemon.wait()
        self._daemons.clear()
        for _ in range(3):
            for process in processes(**self.environ):
                with suppress(psutil.Error):
                    process.kill()

    def _start(self, name, *command):
        ending = ["setpriv", "--pdeathsig", "TERM"]  # the daemon ends with whoever started it, too
        with open(self.folder / f"{name}.out", "ab") as output:
            self._daemons[name] = subprocess.Popen(
                [*ending, *command],
                env={**os.environ, **self.environ},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def wait_until(condition, what):
    deadline_s = time.monotonic() + START_S
    while not condition():
        if time.monotonic() > deadline_s:
            raise TimeoutError(f"{what} did not get ready in {START_S:g} s")
        time.sleep(0.1)


def processes(**variables):
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.pid != os.getpid() and variables.items() <= process.environ().items():
                found.append(process)
    return found


if __name__ == "__main__":
    if why_not():
        sys.exit(why_not())
    with SlurmCluster(sys.argv[1]) as cluster:
        print(f"export SLURM_CONF={cluster.environ['SLURM_CONF']}", flush=True)
        sys.stdin.read()
