"""A rank on another machine, as if it were a process here: `python -m harness.instruments.remote ROLE`.

torchrun or srun started a process for every rank. Rank 0's runs the harness; every other one is a server
(`serve`), which runs a `harness.instruments.rank` whenever a pool asks for it. For the pool the rank is its
relay (`relay`), a process of its own that hands calls and answers on, prints what the rank printed last, and
dies as it died. Where the relay itself is killed, its guard (`guard`) tells the server to kill the rank. The
keeper (`keep`) tells all servers once rank 0's harness is gone. All of it goes through one store of torch's.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from harness.instruments import printed
from harness.instruments.launched import READY, REMOTE, STORE
from harness.instruments.rank import die_with_starter

END = "harness/end"
DIED = b"!"
"""Begins what is said of a rank that is gone; an answer is JSON."""

LINES = 12
LOOK_S = 0.1
"""How often one looks where several things may be said."""

LINGER_S = 3.0
"""How long a store stays after the end, for servers to read of it."""

MEET_S = 600.0
HANDED_ON = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "OMP_NUM_THREADS")


def store(host: bool = False) -> Any:
    """A connection of one's own: a wait in one is no other's. Raises RuntimeError where there is no store."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # a store that goes is no more than an end
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    address, _, port = os.environ[STORE].rpartition(":")
    limit = timedelta(seconds=MEET_S)
    found = TCPStore(address, int(port), is_master=host, wait_for_workers=False, timeout=limit)
    found.set_timeout(timedelta(days=365))  # of a wait: its end is said
    return found


def keep(host: bool) -> None:
    """Say that the store is there; until standard input ends; then all servers may go."""
    try:
        held = store(host)
    except RuntimeError as error:
        sys.stdout.write(f"{str(error).partition(chr(10))[0]}\n")
        return
    sys.stdout.write(f"{READY}\n")
    sys.stdin.read()
    held.set(END, "")
    if host:
        time.sleep(LINGER_S)


def guard(over: str) -> None:
    """Until standard input ends: then the rank is to be killed."""
    held = store()
    sys.stdin.read()
    held.set(over, "")


def relay() -> None:
    """Be the rank for the pool that started this."""
    die_with_starter()
    rank, held = os.environ["RANK"], store()
    start = f"harness/{rank}/{held.add(f'harness/{rank}/starts', 1)}"
    told = {name: os.environ[name] for name in HANDED_ON if name in os.environ}
    held.set(f"{start}/start", json.dumps(told))
    # The guard's input ends with this process, whatever ends it.
    with subprocess.Popen([sys.executable, "-m", REMOTE, "guard", f"{start}/over"], stdin=subprocess.PIPE):
        threading.Thread(target=_answers, args=(start,), daemon=True).start()
        with open(0, "rb", closefd=False) as lines:
            for number, line in enumerate(lines):
                held.set(f"{start}/call{number}", line)
        os._exit(0)


def _answers(start: str) -> None:
    """Hand answers on; die as the rank died."""
    held, descriptor, number = store(), int(os.environ["ANSWERS"]), 0
    os.set_inheritable(descriptor, False)
    with open(descriptor, "wb", buffering=0) as answers:
        while not (answer := _taken(held, f"{start}/answer{number}")).startswith(DIED):
            answers.write(answer)
            number += 1
    last = json.loads(answer.removeprefix(DIED))
    sys.stdout.write(last["said"] + "\n")
    if last["code"] < 0:
        os.kill(os.getpid(), -last["code"])
    os._exit(last["code"])


def _taken(held: Any, key: str) -> bytes:
    """What is said there, once it is; it goes from the store."""
    value: bytes = held.get(key)
    held.delete_key(key)
    return value


def serve(rank: str, local: str) -> None:
    """Run the rank whenever it is asked for, until the end is said."""
    held, number = store(), 1
    while _said(held, f"harness/{rank}/{number}/start", END) != END:
        start = f"harness/{rank}/{number}"
        number += 1
        follower = f"harness/{rank}/{number}/start"
        Served(start, follower, json.loads(_taken(held, f"{start}/start")), local).wait()


def _said(held: Any, *keys: str) -> str:
    """The first of these that is said. Raises RuntimeError once the store is gone."""
    while True:
        for key in keys:
            if held.check([key]):
                return key
        time.sleep(LOOK_S)


class Served:
    """The rank's process on its own machine, and the threads that hand on what it hears and says."""

    def __init__(self, start: str, follower: str, environment: dict[str, str], local: str) -> None:
        self._start, self._follower = start, follower
        self._folder = tempfile.TemporaryDirectory(prefix="rank")
        self._printed = Path(self._folder.name) / "printed"
        read, write = os.pipe()
        with self._printed.open("wb") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-u", "-m", "harness.instruments.rank"],
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **environment, "LOCAL_RANK": local, "ANSWERS": str(write)},
                pass_fds=(write,),
            )
        os.close(write)
        self._said = os.fdopen(read, "rb")
        for work in (self._calls, self._over):
            threading.Thread(target=self._or_kill, args=(work,), daemon=True).start()

    def wait(self) -> None:
        """Hand on what it says until it is gone; then say how."""
        held, number = store(), 0
        for number, line in enumerate(self._said, start=1):
            held.set(f"{self._start}/answer{number - 1}", line)
        code = self._process.wait()
        last = {"code": code, "said": printed.last(self._printed, LINES).strip()}
        held.set(f"{self._start}/answer{number}", DIED + json.dumps(last).encode())
        self._folder.cleanup()

    def _calls(self) -> None:
        held, number = store(), 0
        while self._process.stdin:
            self._process.stdin.write(_taken(held, f"{self._start}/call{number}"))
            self._process.stdin.flush()
            number += 1

    def _over(self) -> None:
        _said(store(), f"{self._start}/over", self._follower, END)
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
        keep(rest[0] == "host")
    elif role == "guard":
        guard(rest[0])
    elif role == "relay":
        relay()
    else:
        serve(rest[0], rest[1])
    os._exit(0)  # threads that wait at the store are left as they are


if __name__ == "__main__":
    main(sys.argv[1:])
