"""Ranks forked from a process that has imported torch and deepspeed: importing takes a rank three seconds.

One such process per pytest worker serves all pools of `harness.instruments.distributed.rank_pool` there. A
rank with what a fork cannot give it, such as another number of threads, is started as in a sweep; so are all
where there is a GPU, since CUDA cannot be used in a fork.
`python -m forked_ranks SOCKET` is that process.
"""

import ctypes
import gc
import importlib
import json
import os
import socket
import subprocess
import sys
from contextlib import suppress
from types import SimpleNamespace

from harness.instruments.distributed import rank_pool, rank_worker
from harness.sweep.executors.local import GPUS
from harness.sweep.executors.template import MESSAGE_B, Forked, _end_threads

IMPORTS = (
    "deepspeed",
    "torch.distributed.fsdp",
    "torch._dynamo",  # what the first optimizer imports, for four seconds
    "torch.distributed.tensor.parallel",
    "suites.dataloader.on_rank",
    "suites.fabric.on_rank",
    "suites.interconnect.on_rank",
    "suites.offload.on_rank",
)
THREADS = "OMP_NUM_THREADS"  # read when torch is imported
CLONE_NEWNET = 0x40000000  # setns(2)


class Rank(Forked):
    """A forked rank, with what `rank_pool` uses of `subprocess.Popen`'s interface."""

    def poll(self):
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number):
        with suppress(ProcessLookupError):
            super().send_signal(number)


class Template:
    """The process that forks ranks, started for the first one."""

    def __init__(self):
        self.process = self.connection = None

    def popen(self, command, *, stdin, stdout, stderr, env, pass_fds):
        *prefix, _, _, _, _ = command
        network = _network(prefix)
        if network is None or env.get(THREADS, os.environ[THREADS]) != os.environ[THREADS]:
            return subprocess.Popen(
                command, stdin=stdin, stdout=stdout, stderr=stderr, env=env, pass_fds=pass_fds
            )
        if self.process is None:
            self.start()
        request = {"environment": env, "network": network, "folder": os.getcwd()}
        return Rank(self, self.ask(request, [stdin, stdout.fileno(), *pass_fds]))

    def start(self):
        self.connection, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno())],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdout=subprocess.DEVNULL,  # deepspeed's log
                pass_fds=[theirs.fileno()],
            )

    def ask(self, request, fds=()):
        """Return what it answers: the number of a rank that it forked, or the exit code of one."""
        socket.send_fds(self.connection, [json.dumps(request).encode()], fds)
        return json.loads(self.connection.recv(MESSAGE_B))

    def reap(self, pid):
        return self.ask({"reap": pid})

    def close(self):
        if self.process is not None:
            self.connection.close()
            self.process.wait(timeout=30)


def _network(prefix):
    """Return the network namespace that a command is to run in, "" for this one; None where it cannot."""
    if not prefix:
        return ""
    before, after = prefix[:-2], prefix[-2:]
    plain = before[:2] == ["nsenter", "--target"] and len(before) == 3 and after[1] == "--"
    return after[0].removeprefix("--net=") if plain else None


def forking(patch):
    """Let pools fork their ranks from now on; return the template, to be closed."""
    template = Template()
    if any(map(os.path.exists, GPUS)):
        return template
    ours = SimpleNamespace(Popen=template.popen, TimeoutExpired=subprocess.TimeoutExpired)
    patch.setattr(rank_pool, "subprocess", ours)
    return template


def main():
    connection = socket.socket(fileno=int(sys.argv[1]))
    for module in IMPORTS:
        with suppress(ImportError):
            importlib.import_module(module)
    _end_threads()
    gc.freeze()  # deepspeed's third stage begins with collections of garbage
    while True:
        message, fds, _, _ = socket.recv_fds(connection, MESSAGE_B * 16, 3)
        if not message:
            return
        request = json.loads(message)
        if "reap" in request:
            status = os.waitpid(request["reap"], 0)[1]
            connection.send(json.dumps(os.waitstatus_to_exitcode(status)).encode())
        elif (pid := os.fork()) == 0:
            connection.close()
            become_rank(request, *fds)
        else:
            connection.send(json.dumps(pid).encode())
            for fd in fds:
                os.close(fd)


def become_rank(request, stdin, output, answers):
    """Give this fork what a rank started by its own command has, and answer its calls."""
    os.environ.clear()
    os.environ.update(request["environment"], ANSWERS=str(answers))
    os.chdir(request["folder"])
    sys.path[:0] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    for there, here in ((stdin, 0), (output, 1), (output, 2)):
        os.dup2(there, here)
    os.close(stdin)
    os.close(output)
    if request["network"]:
        namespace = os.open(request["network"], os.O_RDONLY)
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(namespace, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
        os.close(namespace)
    rank_worker.main()


if __name__ == "__main__":
    main()
