"""A network on one machine: a namespace per node, veth pairs between them, real packets, shaped links.

Needs Linux, and root or a kernel that allows user namespaces; `Unavailable` names what is missing. All of it
is in namespaces that no other process sees. So names cannot collide, and nothing is left once the processes
in it are gone, however they ended: not in `ip netns list` either.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import IO, Any

from harness.instruments.network.netns_server import NAMESPACES, interface
from harness.instruments.network.topology import Flow, RouteRule, Topology
from harness.records import Unavailable

SERVER = "harness.instruments.network.netns_server"
PROBE = "harness.instruments.network.bandwidth_probe"
PROGRAMS = ("unshare", "nsenter", "mount")
RATE_TOLERANCE = 0.05  # relative error of a link's rate beyond which it is refused
PROBE_S = (0.4, 0.8, 1.6, 3.2)
"""How long a link is filled to measure its rate. If that differs from the requested rate it is filled again,
for longer: on a busy machine the processes that fill it may have waited for the processor."""

GRACE_S = 5.0

CANNOT = {
    "build": "be made",
    "rate": "be shaped",
    "hash_by": "set what its switches hash",
    "set_rules": "take routing rules",
    "egress_links": "report routes",
    "sent": "be read",
    "retransmitted": "be read",
}
"""Request, a method of the server -> what the network cannot do where it fails."""


class Network:
    """A topology of namespaces; a context that removes it. `receive_buffer_B`: TCP with credits."""

    def __init__(self, topology: Topology, receive_buffer_B: int | None = None) -> None:
        self.topology = topology
        self._privileges = privileges()
        self._prefix = f"harness{os.getpid()}"
        self._server = _start(self._privileges, self._prefix)
        try:
            self._pid = self._ask("build", topology=asdict(topology), receive_buffer_B=receive_buffer_B)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Network:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def command(self, node: str, command: Sequence[str]) -> list[str]:
        """Return the command that runs `command` on that node."""
        root = f"/proc/{self._pid}/root"
        user = ["--user", "--preserve-credentials"] if "--user" in self._privileges else []
        space = f"--net={root}{NAMESPACES}/{self._prefix}-{node}"
        return ["nsenter", "--target", str(self._pid), *user, space, "--", *command]

    def address(self, host: str) -> str:
        """Return the address by which others reach the host."""
        return str(self.topology.host_address(host))

    def interface(self, host: str) -> str:
        """Return the host's only interface."""
        return interface(self.topology.link_of(host))

    def set_rate(self, link: int, rate_B_per_s: float | None) -> None:
        """Set the link's rate in each direction; None: what the machine can carry."""
        self._ask("rate", link=link, rate_B_per_s=rate_B_per_s)

    def hash_ports(self, ports: bool) -> None:
        """Make switches hash addresses and ports, as initially, or addresses alone."""
        self._ask("hash_by", ports=ports)

    def set_rules(self, rules: Sequence[RouteRule]) -> None:
        """Route packets by these rules, in place of the previous call's; what is not named is hashed."""
        self._ask("set_rules", rules=[list(one) for one in rules])

    def egress_links(self, flows: Sequence[Flow]) -> list[int]:
        """Return the link by which each flow leaves its switch, as the kernel there reports it."""
        return list(self._ask("egress_links", flows=[list(one) for one in flows]))

    def sent(self) -> list[tuple[int, int]]:
        """Return the bytes sent so far by either end of each link, by the kernel's counters.

        Headers are counted, but where no shaping cuts a large packet into frames it has one header, not one
        per frame: up to 4.4 % less than a line would carry.
        """
        return [(one, other) for one, other in self._ask("sent")]

    def retransmitted(self) -> list[int]:
        """Return the TCP segments that each host has retransmitted so far: tcpRetransSegs (RFC 4022)."""
        return list(self._ask("retransmitted"))

    def verify(self, link: int, asked_B_per_s: float | None) -> float:
        """Return the rate of the slower direction, B/s; raises `Unavailable` if off by more than 5 %."""
        one, other = self.topology.links[link][:2]
        return min(self._right(link, *ends, asked_B_per_s) for ends in ((one, other), (other, one)))

    def close(self) -> None:
        """Remove the network. A process that still runs on a node keeps only that node until it ends."""
        stdin, stdout, stderr = _pipes(self._server)
        with suppress(OSError):
            stdin.close()
        try:
            self._server.wait(timeout=GRACE_S)
        except subprocess.TimeoutExpired:
            self._server.kill()
            self._server.wait()
        stdout.close()
        stderr.close()

    def _right(self, link: int, sender: str, receiver: str, asked_B_per_s: float | None) -> float:
        """Return the rate from sender to receiver, B/s; raises `Unavailable` where it is not as requested."""
        rate = 0.0
        for seconds in PROBE_S:
            rate = self._carried(link, sender, receiver, seconds)
            if asked_B_per_s is None or abs(rate / asked_B_per_s - 1) <= RATE_TOLERANCE:
                return rate
        assert asked_B_per_s is not None
        most = "this machine cannot carry more" if rate < asked_B_per_s else "it is not shaped to that"
        raise Unavailable(
            f"link {sender}-{receiver} is shaped to {asked_B_per_s * 8e-6:.6g} Mbit/s but carries "
            f"{rate * 8e-6:.6g}: {most}"
        )

    def _carried(self, link: int, sender: str, receiver: str, seconds: float) -> float:
        """Return what the sender's end puts on the link while one connection is kept full, B/s."""
        run = [sys.executable, "-m", PROBE]
        address = str(self.topology.address(receiver, link))
        message, limit_s = f"link {sender}-{receiver} carries nothing", 20 * seconds + 20
        with _piped(self.command(receiver, [*run, "receive", address])) as receiving:
            try:
                _, stdout, stderr = _pipes(receiving)
                port = stdout.readline().strip()
                if not port:
                    raise Unavailable(f"{message}: {receiver}: {_last_line(stderr.read())}")
                frame_B = str(self.topology.frame_B)
                send = [*run, "send", address, port, interface(link), frame_B, str(seconds)]
                command = self.command(sender, send)
                done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s)
            except subprocess.TimeoutExpired:
                raise Unavailable(f"{message} within {limit_s:g} s") from None
            finally:
                receiving.kill()
        if done.returncode:
            raise Unavailable(f"{message}: {sender}: {_last_line(done.stderr)}")
        return float(done.stdout)

    def _ask(self, do: str, **what: Any) -> Any:
        stdin, stdout, stderr = _pipes(self._server)
        if stdin.closed:
            raise Unavailable("the network is closed")
        try:
            stdin.write(json.dumps({"do": do, **what}) + "\n")
            stdin.flush()
            line = stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            raise Unavailable(f"the network's server process ended: {_last_line(stderr.read())}")
        reply = json.loads(line)
        if "error" in reply:
            raise Unavailable(f"the network cannot {CANNOT[do]}: {reply['error']}")
        return reply["answer"]


def privileges() -> list[str]:
    """Return the options of unshare(1) with which this user may open namespaces; raises `Unavailable`."""
    if not sys.platform.startswith("linux"):
        raise Unavailable(f"networks of namespaces need Linux, and this is {sys.platform}")
    for program in PROGRAMS:
        if shutil.which(program) is None:
            raise Unavailable(f"networks of namespaces need the program {program} (Debian: util-linux)")
    message = ""
    for user in ([], ["--user", "--map-root-user"]):
        options = [*user, "--net", "--mount"]
        tried = subprocess.run(["unshare", *options, "true"], capture_output=True, text=True)
        if tried.returncode == 0:
            return options
        message = _last_line(tried.stderr)
    raise Unavailable(f"networks of namespaces need root, or a kernel that allows user namespaces: {message}")


def _start(options: Sequence[str], prefix: str) -> subprocess.Popen[str]:
    """Start the server process inside, with its own /run for names; it ends with this process."""
    mounted = 'mount -t tmpfs none /run && exec "$@"'
    inside = [sys.executable, "-m", SERVER, prefix]
    return _piped(["unshare", *options, "--fork", "--kill-child", "--", "sh", "-c", mounted, "sh", *inside])


def _piped(command: Sequence[str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def _pipes(process: subprocess.Popen[str]) -> tuple[IO[str], IO[str], IO[str]]:
    assert process.stdin
    assert process.stdout
    assert process.stderr
    return process.stdin, process.stdout, process.stderr


def _last_line(text: str) -> str:
    return next(reversed([line for line in text.splitlines() if line.strip()]), "it printed nothing")
