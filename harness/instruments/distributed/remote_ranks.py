"""The ranks that torchrun or srun started: their environment, and how rank 0 uses those on other machines.

The standard library alone at first, because the parent imports it. torchrun or srun started a process for
every rank. Rank 0's runs the harness; every other one is a server (`serve_rank`), which runs a `rank_worker`
whenever a pool asks for it. In the pool, the rank is represented by its relay (`relay`), a process that
forwards calls and answers, prints the rank's last output, and ends as it ended. Both sides send heartbeats;
if one goes silent, the other terminates the rank. The keeper (`keep`) notifies all servers once rank 0's
harness is gone. All communication goes through one torch store.

`python -m harness.instruments.distributed.remote_ranks ROLE` runs one of these.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple
from uuid import uuid4

from harness.instruments.distributed import rank_pool
from harness.instruments.distributed.rank_pool import RankLocation
from harness.instruments.distributed.rank_worker import LEASE_S, POOL, SILENT, STORE
from harness.instruments.process import die_with_starter

REMOTE = "harness.instruments.distributed.remote_ranks"
RUN = "HARNESS_RUN"  # distinguishes the keys of one start of a job from those of another in the same store
READY = "ready"
PATIENCE_S = 30.0


class LaunchError(ValueError):
    """A launcher's variables are unusable; the text names which, and what to do."""


class Launch(NamedTuple):
    """This process: `local` of `per_node` on its node, of launch `run`. `hosts`: it opens the store."""

    rank: int
    world: int
    local: int
    per_node: int
    address: str
    port: int
    hosts: bool
    run: str

    @property
    def nodes(self) -> int:
        """Return the number of nodes."""
        return self.world // self.per_node

    @property
    def store(self) -> str:
        """Return the address of the common store."""
        return f"{self.address}:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """Return the environment of a process of `REMOTE`: where to meet."""
        return {STORE: self.store, RUN: self.run}


def launch(environ: Mapping[str, str] | None = None) -> Launch | None:
    """Return the launch of an environment; None for a process started alone. Raises LaunchError."""
    environ = os.environ if environ is None else environ
    if "TORCHELASTIC_RUN_ID" in environ:
        numbers = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
        rank, world, local, per_node = (int(environ[name]) for name in numbers)
        hosts = environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        run = f"{environ['TORCHELASTIC_RUN_ID']}/{environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
        nodes = world // per_node
    elif "SLURM_STEP_NUM_TASKS" in environ and "SLURM_PROCID" in environ:
        numbers = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_NUM_NODES")
        rank, world, local, nodes = (int(environ[name]) for name in numbers)
        per_node, hosts = -(-world // nodes), True
        run = f"{environ.get('SLURM_JOB_ID', '')}.{environ.get('SLURM_STEP_ID', '')}"
    else:
        return None
    if world == 1:
        return None
    if world != nodes * per_node:
        raise LaunchError(f"{world} processes are spread unevenly over the nodes: {per_node} are on one")
    for name in ("MASTER_ADDR", "MASTER_PORT"):
        if name not in environ:
            raise LaunchError(
                f"{name} is missing: started as process {rank} of {world}, and these meet at the first node: "
                "export MASTER_ADDR (its name) and MASTER_PORT (a free port)"
            )
    address, port = environ["MASTER_ADDR"], int(environ["MASTER_PORT"])
    return Launch(rank, world, local, per_node, address, port, hosts, run)


def places(launch: Launch, environment: Mapping[str, str]) -> list[RankLocation]:
    """Return where the ranks of one pool run: rank 0 here, the others where they were started."""
    given = {**environment, **launch.environment, POOL: uuid4().hex}
    here = RankLocation((), {**given, "LOCAL_RANK": str(launch.local)})
    return [here, *[RankLocation(_role("relay"), given)] * (launch.world - 1)]


def serve(launch: Launch) -> None:
    """Run this rank whenever rank 0 asks for it; does not return."""
    os.environ.update(launch.environment)
    os.execv(sys.executable, _role("serve", launch.rank, launch.local))


def _role(*words: object) -> list[str]:
    return [sys.executable, "-u", "-m", REMOTE, *map(str, words)]


@contextmanager
def attended(launch: Launch | None) -> Iterator[None]:
    """Keep the other ranks inside the block, and shut them down however it exits. Raises LaunchError."""
    if launch is None:
        yield
        return
    words = _role("keep", "host" if launch.hosts else "visit", launch.world - 1)
    environment = {**os.environ, **launch.environment}
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
        reply = process.stdout.readline().decode().strip() if process.stdout else ""
        if reply != READY:
            raise LaunchError(f"ranks cannot meet at {launch.store}: {reply}")
        try:
            yield
        finally:
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=2 * PATIENCE_S)
            process.kill()
            if process.wait() and not launch.hosts:  # it was killed without notice
                subprocess.run(words, stdin=subprocess.DEVNULL, env=environment, check=False)


END = "end"
GONE = "gone"
DIED = b"!"  # prefix of the message that a rank is gone; an answer is JSON
LINES = 100
LOOK_S = 0.1  # polling interval where several messages may arrive
SERVED_S = 60.0  # how long a server may take to start: it may be importing torch
MEET_S = 120.0
HANDED_ON = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS", POOL)


def store(host: bool = False) -> Any:
    """Return a separate connection, so that a wait blocks no other; raises RuntimeError without a store."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a store that disappears only means the end
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    address, _, port = os.environ[STORE].rpartition(":")
    limit = timedelta(seconds=MEET_S)
    client = TCPStore(address, int(port), is_master=host, wait_for_workers=False, timeout=limit)
    client.set_timeout(timedelta(days=365))  # of a wait, whose end is signalled
    return PrefixStore(f"harness/{os.environ[RUN]}", client)


def keep(host: bool, servers: int) -> None:
    """Announce the store; once standard input ends, release the servers and stay until they have ended."""
    try:
        client = store(host)
    except RuntimeError as error:
        sys.stdout.write(f"{_first_line(error)}\n")
        return
    sys.stdout.write(f"{READY}\n")
    sys.stdin.read()
    client.set(END, "")
    until_s = time.monotonic() + PATIENCE_S
    while host and client.add(GONE, 0) < servers and time.monotonic() < until_s:
        time.sleep(LOOK_S)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def relay() -> None:
    """Represent the rank in the pool that started this process."""
    die_with_starter()
    rank, client = os.environ["RANK"], store()
    number = client.add(f"{rank}/starts", 1)
    start = f"{rank}/{number}"
    environment = {name: os.environ[name] for name in HANDED_ON if name in os.environ}
    signal.signal(signal.SIGUSR1, lambda *_: client.set(f"{start}/stack", ""))  # to print its stack
    signal.signal(signal.SIGTERM, lambda *_: _over(client, start))
    client.set(f"{rank}/start", json.dumps([number, environment]))
    for work in (_live, _answers):
        threading.Thread(target=work, args=(start,), daemon=True).start()
    with open(0, "rb", closefd=False) as lines:
        for place, line in enumerate(lines):
            client.set(f"{start}/call{place}", line)
    _over(client, start)


def _over(client: Any, start: str) -> None:
    """Make the server end the rank now, and end."""
    client.set(f"{start}/over", "")
    os._exit(0)


def _live(start: str) -> None:
    """Send heartbeats; end where the server's are missing."""
    client, heard, until_s = store(), 0, time.monotonic() + SERVED_S
    while True:
        client.add(f"{start}/alive", 1)
        if (served := client.add(f"{start}/served", 0)) != heard:
            heard, until_s = served, time.monotonic() + LEASE_S
        if time.monotonic() > until_s:
            os._exit(SILENT)
        time.sleep(LEASE_S / 10)


def _answers(start: str) -> None:
    client, descriptor, number = store(), int(os.environ["ANSWERS"]), 0
    os.set_inheritable(descriptor, False)
    with open(descriptor, "wb", buffering=0) as answers:
        while not (answer := _taken(client, f"{start}/answer{number}")).startswith(DIED):
            answers.write(answer)
            number += 1
    last = json.loads(answer.removeprefix(DIED))
    sys.stdout.write("\n".join([*last["said"], ""]))
    if last["code"] < 0:
        handled = -last["code"] == signal.SIGUSR1  # caught by this process, which must die nonetheless
        signal.pthread_kill(threading.get_ident(), signal.SIGKILL if handled else -last["code"])
    os._exit(last["code"])


def _taken(client: Any, key: str) -> bytes:
    """Return the value of a key once it is set, and remove it from the store."""
    value: bytes = client.get(key)
    client.delete_key(key)
    return value


def serve_rank(rank: str, local: str) -> None:
    """Run the rank whenever it is asked for, until the end is announced."""
    client, last, start = store(), 0, f"{rank}/start"
    while not client.check([END]):
        number, environment = json.loads(client.get(start)) if client.check([start]) else (0, {})
        if number > last:
            last = number
            Served(rank, number, {**environment, "LOCAL_RANK": local}).wait()
        time.sleep(LOOK_S)
    client.add(GONE, 1)


class Served:
    """The rank's process on its own machine, and the threads that forward its input and output."""

    def __init__(self, rank: str, number: int, environment: dict[str, str]) -> None:
        self._rank, self._number, self._start = rank, number, f"{rank}/{number}"
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  # unnamed: it is gone with this process
        read, write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-u", "-m", "harness.instruments.distributed.rank_worker"],
            stdin=subprocess.PIPE,
            stdout=self._printed,
            stderr=self._printed,
            env={**os.environ, **environment, "ANSWERS": str(write)},
            pass_fds=(write,),
        )
        os.close(write)
        self._output_lines = os.fdopen(read, "rb")
        for work in (self._calls, self._watch):
            threading.Thread(target=self._or_kill, args=(work,), daemon=True).start()

    def wait(self) -> None:
        """Forward its answers until it is gone; then report how it ended."""
        client, number = store(), 0
        for number, line in enumerate(self._output_lines, start=1):
            client.set(f"{self._start}/answer{number - 1}", line)
        code = self._process.wait()
        output = rank_pool.tail(Path(f"/proc/self/fd/{self._printed.fileno()}"))
        last = json.dumps({"code": code, "said": output[-LINES:]})
        client.set(f"{self._start}/answer{number}", DIED + last.encode())
        self._printed.close()

    def _calls(self) -> None:
        client, number = store(), 0
        while self._process.stdin:
            self._process.stdin.write(_taken(client, f"{self._start}/call{number}"))
            self._process.stdin.flush()
            number += 1

    def _watch(self) -> None:
        """Kill the rank once its relay has ended or been replaced; request its stack if asked."""
        client, alive, since_s, requested = store(), 0, time.monotonic(), False
        while self._process.poll() is None:
            time.sleep(LOOK_S)
            client.add(f"{self._start}/served", 1)
            if client.check([f"{self._start}/stack"]) and not requested:
                requested = True
                self._process.send_signal(signal.SIGUSR1)
            if (now := client.add(f"{self._start}/alive", 0)) != alive:
                alive, since_s = now, time.monotonic()
            follower = client.add(f"{self._rank}/starts", 0) > self._number
            over = follower or client.check([END]) or client.check([f"{self._start}/over"])
            if over or time.monotonic() - since_s > LEASE_S:
                self._process.kill()

    def _or_kill(self, work: Any) -> None:
        try:
            work()
        except (RuntimeError, OSError):
            self._process.kill()


def main(words: list[str]) -> None:
    """Run the role that the arguments name."""
    role, *rest = words
    if role == "keep":
        keep(rest[0] == "host", int(rest[1]))
    elif role == "relay":
        relay()
    else:
        try:
            serve_rank(rest[0], rest[1])
        except RuntimeError as error:
            gone = f"nobody meets at {os.environ[STORE]} any more: {_first_line(error)}"
            sys.stderr.write(f"harness: rank {rest[0]}: {gone}\n")
            os._exit(1)
    sys.stdout.flush()
    os._exit(0)  # threads that wait at the store are abandoned


if __name__ == "__main__":
    main(sys.argv[1:])
