"""A rank on another machine, as if it were a process here: `python -m
harness.instruments.distributed.remote_ranks ROLE`.

torchrun or srun started a process for every rank. Rank 0's runs the harness; every other one is a server
(`serve`), which runs a `harness.instruments.distributed.rank_worker` whenever a pool asks for it. For the
pool the rank is its
relay (`relay`), a process of its own that hands calls and answers on, prints what the rank printed last, and
dies as it died. Both say again and again that they live, and where one is not heard the other ends the rank.
The keeper (`keep`) tells all servers once rank 0's harness is gone. All goes through one store of torch's.
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
from datetime import timedelta
from pathlib import Path
from typing import Any

from harness.instruments.distributed import log_tail
from harness.instruments.distributed.launcher_env import PATIENCE_S, READY, RUN
from harness.instruments.distributed.rank_worker import POOL, STORE, die_with_starter

END = "end"
GONE = "gone"
DIED = b"!"
"""Begins what is said of a rank that is gone; an answer is JSON."""

LINES = 100
LOOK_S = 0.1
"""How often one looks where several things may be said."""

LEASE_S = 10.0
"""A relay that has not said for so long that it lives does not."""

SERVED_S = 60.0
"""So long a server may take to begin: it may be importing torch."""

MEET_S = 120.0
HANDED_ON = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS", POOL)


def store(host: bool = False) -> Any:
    """A connection of one's own: a wait in one is no other's. Raises RuntimeError where there is no store."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a store that goes is no more than an end
    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    address, _, port = os.environ[STORE].rpartition(":")
    limit = timedelta(seconds=MEET_S)
    found = TCPStore(address, int(port), is_master=host, wait_for_workers=False, timeout=limit)
    found.set_timeout(timedelta(days=365))  # of a wait: its end is said
    return PrefixStore(f"harness/{os.environ[RUN]}", found)


def keep(host: bool, servers: int) -> None:
    """Say that the store is there; once standard input ends, that servers may go; stay until they do."""
    try:
        held = store(host)
    except RuntimeError as error:
        sys.stdout.write(f"{str(error).partition(chr(10))[0]}\n")
        return
    sys.stdout.write(f"{READY}\n")
    sys.stdin.read()
    held.set(END, "")
    until_s = time.monotonic() + PATIENCE_S
    while host and held.add(GONE, 0) < servers and time.monotonic() < until_s:
        time.sleep(LOOK_S)


def relay() -> None:
    """Be the rank for the pool that started this."""
    die_with_starter()
    rank, held = os.environ["RANK"], store()
    number = held.add(f"{rank}/starts", 1)
    start = f"{rank}/{number}"
    environment = {name: os.environ[name] for name in HANDED_ON if name in os.environ}
    held.set(f"{rank}/start", json.dumps([number, environment]))
    signal.signal(signal.SIGUSR1, lambda *_: held.set(f"{start}/stack", ""))  # the rank says it, and dies
    for work in (_live, _answers):
        threading.Thread(target=work, args=(start,), daemon=True).start()
    with open(0, "rb", closefd=False) as lines:
        for place, line in enumerate(lines):
            held.set(f"{start}/call{place}", line)
    held.set(f"{start}/over", "")
    os._exit(0)


def _live(start: str) -> None:
    """Say that this lives; die where the server does not."""
    held, heard, until_s = store(), 0, time.monotonic() + SERVED_S
    while True:
        held.add(f"{start}/alive", 1)
        if (served := held.add(f"{start}/served", 0)) != heard:
            heard, until_s = served, time.monotonic() + LEASE_S
        if time.monotonic() > until_s:
            sys.stdout.write(f"nobody serves rank {os.environ['RANK']} on its machine\n")
            os._exit(1)
        time.sleep(LEASE_S / 10)


def _answers(start: str) -> None:
    """Hand answers on; die as the rank died."""
    held, descriptor, number = store(), int(os.environ["ANSWERS"]), 0
    os.set_inheritable(descriptor, False)
    with open(descriptor, "wb", buffering=0) as answers:
        while not (answer := _taken(held, f"{start}/answer{number}")).startswith(DIED):
            answers.write(answer)
            number += 1
    last = json.loads(answer.removeprefix(DIED))
    sys.stdout.write("\n".join([*last["said"], ""]))
    if last["code"] < 0:
        handled = -last["code"] == signal.SIGUSR1  # by this process, which is to die all the same
        signal.pthread_kill(threading.get_ident(), signal.SIGKILL if handled else -last["code"])
    os._exit(last["code"])


def _taken(held: Any, key: str) -> bytes:
    """What is said there, once it is; it goes from the store."""
    value: bytes = held.get(key)
    held.delete_key(key)
    return value


def serve(rank: str, local: str) -> None:
    """Run the rank whenever it is asked for, until the end is said."""
    held, last = store(), 0
    while not held.check([END]):
        number, environment = (
            json.loads(held.get(f"{rank}/start")) if held.check([f"{rank}/start"]) else (0, {})
        )
        if number > last:
            last = number
            Served(rank, number, {**environment, "LOCAL_RANK": local}).wait()
        time.sleep(LOOK_S)
    held.add(GONE, 1)


class Served:
    """The rank's process on its own machine, and the threads that hand on what it hears and says."""

    def __init__(self, rank: str, number: int, environment: dict[str, str]) -> None:
        self._rank, self._number, self._start = rank, number, f"{rank}/{number}"
        self._printed = tempfile.TemporaryFile()  # noqa: SIM115  # of no name: it is gone with this process
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
        self._said = os.fdopen(read, "rb")
        for work in (self._calls, self._watch):
            threading.Thread(target=self._or_kill, args=(work,), daemon=True).start()

    def wait(self) -> None:
        """Hand on what it says until it is gone; then say how."""
        held, number = store(), 0
        for number, line in enumerate(self._said, start=1):
            held.set(f"{self._start}/answer{number - 1}", line)
        code = self._process.wait()
        said = log_tail.tail(Path(f"/proc/self/fd/{self._printed.fileno()}"), LINES)
        last = json.dumps({"code": code, "said": said})
        held.set(f"{self._start}/answer{number}", DIED + last.encode())
        self._printed.close()

    def _calls(self) -> None:
        held, number = store(), 0
        while self._process.stdin:
            self._process.stdin.write(_taken(held, f"{self._start}/call{number}"))
            self._process.stdin.flush()
            number += 1

    def _watch(self) -> None:
        """Kill the rank once its relay is over or has a follower; have it say where it hangs, if asked."""
        held, alive, since_s, asked = store(), 0, time.monotonic(), False
        while self._process.poll() is None:
            time.sleep(LOOK_S)
            held.add(f"{self._start}/served", 1)
            if held.check([f"{self._start}/stack"]) and not asked:
                asked = True
                self._process.send_signal(signal.SIGUSR1)
            if (now := held.add(f"{self._start}/alive", 0)) != alive:
                alive, since_s = now, time.monotonic()
            follower = held.add(f"{self._rank}/starts", 0) > self._number
            over = follower or held.check([END]) or held.check([f"{self._start}/over"])
            if over or time.monotonic() - since_s > LEASE_S:
                self._process.kill()

    def _or_kill(self, work: Any) -> None:
        """A rank that nobody can be heard from any more is killed."""
        try:
            work()
        except (RuntimeError, OSError):
            self._process.kill()


def main(words: list[str]) -> None:
    """The role that the words name."""
    role, *rest = words
    if role == "keep":
        keep(rest[0] == "host", int(rest[1]))
    elif role == "relay":
        relay()
    else:
        try:
            serve(rest[0], rest[1])
        except RuntimeError as error:
            said = str(error).partition("\n")[0]
            sys.stderr.write(
                f"harness: rank {rest[0]}: nobody meets at {os.environ[STORE]} any more: {said}\n"
            )
            os._exit(1)
    sys.stdout.flush()
    os._exit(0)  # threads that wait at the store are left as they are


if __name__ == "__main__":
    main(sys.argv[1:])
