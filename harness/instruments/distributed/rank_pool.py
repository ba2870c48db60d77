"""A pool of ranks: processes that run the same call at once and meet in torch.distributed's collectives.

Each may be started by its own command, such as on a node of a
`harness.instruments.network.emulated_network.Network`. A failure of one ends them all and becomes one
exception that names the rank, the call and the reason.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness.instruments.distributed.rank_worker import LEASE_S, MEANT, SILENT, STORE
from harness.records import LOST, Unavailable

if TYPE_CHECKING:
    from harness.instruments.network.emulated_network import Network

TAIL_B = 1 << 16
LINE_LENGTH = 300
STACK = "(most recent call first):"  # end of the line before faulthandler's frames, innermost first


def _last(path: Path, count: int) -> str:
    """Return the last lines of a file, or the innermost frames of its stack and what is before that."""
    lines = tail(path)
    stacks = [number for number, line in enumerate(lines) if line.endswith(STACK) and "C stack" not in line]
    if not stacks:
        return "; last printed:\n" + "\n".join(lines[-count:]) if lines else ""
    frames = lines[stacks[-1] + 1 :][:count]
    before = lines[: stacks[-1]][len(frames) - count :] if len(frames) < count else []
    printed = "; it had printed:\n" + "\n".join(before) if before else ""
    return "; its stack:\n" + "\n".join(frames) + printed


def tail(path: Path) -> list[str]:
    """Return the lines of the file's last 64 KiB, without empty ones."""
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - TAIL_B, 0))
        text = file.read().decode("utf-8", "replace")
        return [line[:LINE_LENGTH] for line in text.splitlines() if line.strip()]
    return []


RANK = "harness.instruments.distributed.rank_worker"
LOOPBACK = ("127.", "::1", "localhost")
CHUNK_B = 1 << 16
GRACE_S = 5.0
GONE_S = 0.5  # how long a rank may take to end after another has lost the connection to it
SILENT_S = 1.5 * LEASE_S  # of a rank on another machine, which may be lost with it: nobody reports its end
SIGTERM_PATIENCE_S = 0.5  # how long ranks may take to end before they are killed
STACK_S = 2.0  # how long a hanging rank, possibly on another machine, may take to print its stack and die
LINES = 12  # lines of the ranks' output in a reason: this many in total, at least the second number of each
FEWEST_LINES = 3


class RankFailed(RuntimeError):
    """A rank raised or died; the text names the rank, the call and its last output."""


class RankTimeout(TimeoutError):
    """Ranks gave no answer in time; the text names the ranks, the call and where each hung."""


class RankLocation(NamedTuple):
    """Where a rank runs: the prefix of its command, and additions to its environment."""

    command: Sequence[str] = ()
    environment: Mapping[str, str] = {}


def locations_in(network: Network, environment: Mapping[str, str]) -> list[RankLocation]:
    """Return where a rank on each host of an emulated network runs; gloo takes its host's interface."""
    return [
        RankLocation(
            network.command(host, []), {"GLOO_SOCKET_IFNAME": network.interface(host), **environment}
        )
        for host in network.topology.hosts
    ]


class _Rank(NamedTuple):
    process: subprocess.Popen[bytes]
    calls: int
    answers: int
    printed: Path
    heard: list[bytes]  # of an incomplete answer


class RankPool:
    """Ranks 0 to N - 1, one per place, connected over `backend`; a context that ends them.

    `address` is rank 0's, which all must reach. `timeout_s` limits a call, and a collective in it.
    Raises `RankFailed` or `RankTimeout` where they cannot meet.
    """

    def __init__(
        self, places: Sequence[RankLocation], address: str, backend: str = "gloo", timeout_s: float = 120.0
    ) -> None:
        self._timeout_s = timeout_s
        self._gone_s = SILENT_S if any(STORE in place.environment for place in places) else GONE_S
        self._folder = tempfile.TemporaryDirectory(prefix="ranks")
        self._ranks: list[_Rank] = []
        self._closed = "the pool is closed"
        self._selector = selectors.DefaultSelector()
        try:
            for number, place in enumerate(places):
                self._ranks.append(self._start(number, len(places), place, address))
                self._selector.register(self._ranks[-1].answers, selectors.EVENT_READ, number)
            (port,) = self._do(f"{RANK}:listen", {"timeout_s": timeout_s}, [0], timeout_s)
            self.call(f"{RANK}:join", backend=backend, port=port, timeout_s=timeout_s)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._ranks)

    @property
    def pids(self) -> list[int]:
        """Return the ranks' process ids."""
        return [rank.process.pid for rank in self._ranks]

    def call(self, function: str, within_s: float | None = None, /, **arguments: Any) -> list[Any]:
        """Run `function` (`module:name`) on all ranks at once and return its results; plain JSON both ways.

        It gets the rank's memory and the arguments. Raises its `Unavailable`, `WrongResult` or MemoryError,
        else `RankFailed`; `RankTimeout` after `within_s` seconds, or after the pool's own limit;
        `Unavailable` where a rank was lost with its node. Any of these closes the pool.
        """
        everyone = list(range(len(self._ranks)))
        return self._do(function, arguments, everyone, self._timeout_s if within_s is None else within_s)

    def close(self) -> None:
        """End every rank, whatever it is doing."""
        ranks, self._ranks = self._ranks, []
        # A relay ends its rank elsewhere on SIGTERM; a stopped process needs SIGKILL.
        _signal(ranks, signal.SIGTERM, SIGTERM_PATIENCE_S)
        _signal(ranks, signal.SIGKILL, GRACE_S)
        for rank in ranks:
            os.close(rank.calls)
            os.close(rank.answers)
        self._selector.close()
        self._folder.cleanup()

    def _do(self, function: str, arguments: Mapping[str, Any], who: list[int], within_s: float) -> list[Any]:
        if not self._ranks:
            raise RankFailed(f"{_name(function)}: {self._closed}")
        line = json.dumps({"call": function, "arguments": arguments}).encode() + b"\n"
        try:
            return self._answers(function, line, who, within_s)
        except BaseException as error:
            self._closed = f"the pool is closed, since {str(error).partition(chr(10))[0] or repr(error)}"
            self.close()
            raise

    def _answers(self, function: str, line: bytes, who: list[int], within_s: float) -> list[Any]:
        until_s = time.monotonic() + within_s
        unsent = {self._ranks[number].calls: memoryview(line) for number in who}
        for calls in unsent:
            self._selector.register(calls, selectors.EVENT_WRITE)
        answers: dict[int, Any] = {}
        while len(answers) < len(who):
            ready = self._selector.select(max(until_s - time.monotonic(), 0))
            if not ready:
                raise RankTimeout(self._hang(function, [n for n in who if n not in answers], within_s))
            for key, _ in ready:
                if key.fd in unsent:
                    unsent[key.fd] = self._send(key.fd, unsent[key.fd])
                    continue
                for reply in self._complete_answers(key.data, function):
                    answers[key.data] = self._answer(key.data, function, json.loads(reply))
        return [answers[number] for number in who]

    def _send(self, calls: int, line: memoryview) -> memoryview:
        """Write what is left to send. That a rank is gone is detected elsewhere."""
        try:
            line = line[os.write(calls, line[:CHUNK_B]) :]
        except BrokenPipeError:
            line = line[:0]
        if not line:
            self._selector.unregister(calls)
        return line

    def _complete_answers(self, number: int, function: str) -> list[bytes]:
        rank = self._ranks[number]
        chunk = os.read(rank.answers, CHUNK_B)
        if not chunk:
            raise RankFailed(self._gone(number, function))
        rank.heard.append(chunk)
        if b"\n" not in chunk:
            return []
        *lines, rest = b"".join(rank.heard).split(b"\n")
        rank.heard[:] = [rest]
        return lines

    def _answer(self, number: int, function: str, reply: Mapping[str, Any]) -> Any:
        if "raised" not in reply:
            return reply["answer"]
        for kind in MEANT:
            if kind.__name__ == reply["raised"]:
                raise kind(f"rank {number}, {_name(function)}: {reply['said']}")
        raise RankFailed(self._raised(number, function, reply["said"]))

    def _raised(self, number: int, function: str, message: str) -> str:
        """Return what a rank raised, or the deaths that made it lose a connection."""
        dead = self._dead(self._gone_s)
        if not dead:
            return f"rank {number}, {_name(function)}: {message}"
        return f"{self._deaths(dead, function)}; rank {number}: {message}{self._last(dead[0])}"

    def _gone(self, number: int, function: str) -> str:
        dead = self._dead(GRACE_S)
        if not dead:
            return f"rank {number} closed its answers in {_name(function)}{self._last(number)}"
        return self._deaths(dead, function) + self._last(dead[0])

    def _dead(self, patience_s: float) -> list[int]:
        """Return the ranks that have ended, waiting briefly for the first."""
        until_s = time.monotonic() + patience_s
        while True:
            dead = [n for n, rank in enumerate(self._ranks) if rank.process.poll() is not None]
            if dead or time.monotonic() > until_s:
                return dead
            time.sleep(0.01)

    def _deaths(self, dead: list[int], function: str) -> str:
        """Return how ranks ended; raises Unavailable where one was lost with its node."""
        codes = {number: self._ranks[number].process.returncode for number in dead}
        for number, code in codes.items():
            if code == SILENT:
                silent = f"lost rank {number} in {_name(function)}: its node sends no heartbeat"
                raise Unavailable(f"{LOST}{silent}")
        ends = [f"rank {number} {_end(code)}" for number, code in codes.items()]
        return f"{' and '.join(ends)} in {_name(function)}"

    def _hang(self, function: str, late: list[int], within_s: float) -> str:
        """Make each late rank print its stack and die; return the timeout's text."""
        _signal([self._ranks[number] for number in late], signal.SIGUSR1, STACK_S)
        who = " and ".join(f"rank {number}" for number in late)
        lines = max(LINES // len(late), FEWEST_LINES)
        stacks = [(number, stack) for number in late if (stack := self._last(number, lines))]
        where = "".join(f"\nrank {number}{stack}" for number, stack in stacks)
        return f"{who} gave no answer to {_name(function)} within {within_s:g} s{where}"

    def _last(self, number: int, lines: int = LINES) -> str:
        return _last(self._ranks[number].printed, lines)

    def _start(self, number: int, world: int, place: RankLocation, address: str) -> _Rank:
        path = Path(self._folder.name) / f"rank{number}"
        (its_calls, calls), (answers, its_answers) = os.pipe(), os.pipe()
        try:
            with path.open("wb") as output:
                process = subprocess.Popen(
                    [*place.command, sys.executable, "-u", "-m", RANK],
                    stdin=its_calls,
                    stdout=output,
                    stderr=output,
                    env=_environment(number, world, place, address, its_answers),
                    pass_fds=(its_answers,),
                )
        except BaseException:
            os.close(calls)
            os.close(answers)
            raise
        finally:
            os.close(its_calls)
            os.close(its_answers)
        os.set_blocking(calls, False)
        return _Rank(process, calls, answers, path, [])


def _signal(ranks: Sequence[_Rank], number: signal.Signals, patience_s: float) -> None:
    until_s = time.monotonic() + patience_s
    for rank in ranks:
        rank.process.send_signal(number)
    for rank in ranks:
        with suppress(subprocess.TimeoutExpired):
            rank.process.wait(timeout=max(until_s - time.monotonic(), 0.01))


def _environment(number: int, world: int, place: RankLocation, address: str, answers: int) -> dict[str, str]:
    """Return the environment; collectives use the loopback device where the ranks meet there, by default."""
    device = {"GLOO_SOCKET_IFNAME": "lo"} if address.startswith(LOOPBACK) else {}
    meeting = {"RANK": str(number), "WORLD_SIZE": str(world), "MASTER_ADDR": address, "ANSWERS": str(answers)}
    return {**os.environ, **device, **meeting, **place.environment}


def _end(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    known = -code in {int(one) for one in signal.Signals}
    return f"was killed by {signal.Signals(-code).name if known else f'signal {-code}'}"


def _name(function: str) -> str:
    return function.rpartition(":")[2]
