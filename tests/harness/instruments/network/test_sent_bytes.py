"""The kernel's count of a process's own TCP bytes, on one connection whose bytes are known."""

import socket

import pytest

from harness.instruments.process import sent_B


@pytest.fixture
def pair():
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        other, _ = server.accept()
        with client, other:
            yield client, other


def received(connection, count_B):
    while count_B:
        count_B -= len(connection.recv(count_B))


def test_what_is_sent_is_counted_to_the_byte_and_what_is_received_is_not(pair):
    client, other = pair
    before_B = sent_B()
    client.sendall(bytes(100_000))
    received(other, 100_000)
    assert sent_B() - before_B == 100_000  # of both ends, which are this process's
    other.sendall(bytes(7))
    received(client, 7)
    assert sent_B() - before_B == 100_007


def test_other_sockets_and_files_are_no_connections(pair, tmp_path):
    before_B = sent_B()
    one, two = socket.socketpair()
    with one, two, (tmp_path / "file").open("wb") as file:
        one.sendall(bytes(1_000))
        file.write(bytes(1_000))
        file.flush()
        assert sent_B() == before_B
