"""Moves bytes over a network of namespaces, counted where they come."""

import math
import subprocess
import sys

import pytest

from harness.instruments.network.emulated_network import privileges
from harness.records import Unavailable

ATTEMPTS = 20

TAKE = """
import socket, sys, time
with socket.create_server((sys.argv[1], 0), backlog=256) as server:
    print(server.getsockname()[1], flush=True)
    count = 0
    for _ in range(int(sys.argv[2])):
        connection, _ = server.accept()
        count += len(connection.recv(1 << 16))
        begin, end = (time.monotonic(), count), None
        while chunk := connection.recv(1 << 16):
            count += len(chunk)
            end = (time.monotonic(), count)
print(count, (end[1] - begin[1]) / (end[0] - begin[0]) if end else 0)
"""
GIVE = """
import socket, sys
to, count, times = (sys.argv[1], int(sys.argv[2])), int(sys.argv[3]), int(sys.argv[4])
for connection in [socket.create_connection(to) for _ in range(times)]:
    connection.sendall(bytes(count))
    connection.close()
"""


def script(network, node, code, *arguments):
    return network.command(node, [sys.executable, "-c", code, *map(str, arguments)])


def moved(network, sender, receiver, count_B, times=1):
    """Send bytes over each of `times` connections; return the bytes received, and the last one's B/s."""
    address = network.address(receiver)
    taking = subprocess.Popen(
        script(network, receiver, TAKE, address, times), stdout=subprocess.PIPE, text=True
    )
    with taking:
        port = taking.stdout.readline().strip()
        subprocess.run(script(network, sender, GIVE, address, port, count_B, times), check=True, timeout=120)
        came, rate = taking.stdout.read().split()
    return int(came), float(rate)


def needs_namespaces():
    try:
        privileges()
    except Unavailable as error:
        pytest.skip(str(error))


def quick_networks(patch):
    """Patch what takes time on emulated networks, or would depend on how busy the machine is."""
    patch.setattr("harness.instruments.network.emulated_network.RATE_TOLERANCE", math.inf)
    patch.setattr("harness.instruments.network.emulated_network.PROBE_S", (0.05,))
    patch.setattr("suites.interconnect.emulated_cluster.REPEATS", 1)
    patch.setattr("suites.interconnect.emulated_cluster.UPDATES", 3)
    patch.setattr("suites.interconnect.emulated_cluster.CALIBRATION_B_PER_S", (2e10, 3.2e11))
