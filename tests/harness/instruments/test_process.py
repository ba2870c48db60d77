"""What a process of the harness counts, keeps and calls first: sent bytes, compiled code, unary functions."""

import re
import socket
import subprocess
import sys
from pathlib import Path

import torch
from places import ROOT

from harness.instruments.process import UNARY_FUNCTIONS, sent_B


def received(connection, count_B):
    while count_B:
        count_B -= len(connection.recv(count_B))


def test_what_a_connection_sends_is_counted_to_the_byte_and_nothing_else(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        other, _ = server.accept()
    one, two = socket.socketpair()
    with client, other, one, two, (tmp_path / "file").open("wb") as file:
        before_B = sent_B()
        client.sendall(bytes(100_000))
        received(other, 100_000)
        assert sent_B() - before_B == 100_000  # of both ends, which are this process's
        other.sendall(bytes(7))
        received(client, 7)
        one.sendall(bytes(1_000))
        file.write(bytes(1_000))
        file.flush()
        assert sent_B() - before_B == 100_007


FIRST_CALLS = """
import sys
from harness.instruments.process import UNARY_FUNCTIONS, call_unary_functions
call_unary_functions()
assert "torch" not in sys.modules
import torch
torch.set_num_threads(2)
call_unary_functions()
x = torch.linspace(0.01, 0.99, 1 << 17)
for name in set(UNARY_FUNCTIONS) - {"trunc"}:
    function = getattr(torch, name)
    error = (function(x) - function(x.double())).abs().max() / function(x.double()).abs().max()
    assert error < 1e-6, f"{name}: {error:.1e}"
"""


def test_unary_functions_are_right_in_a_new_process_and_those_that_torch_leaves_to_mkl():
    done = subprocess.run([sys.executable, "-c", FIRST_CALLS], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    header = Path(torch.__file__).parent / "include/ATen/cpu/vml.h"
    left = re.findall(r"^IMPLEMENT_VML_MKL\((\w+), \w+\)", header.read_text(), re.MULTILINE)
    assert sorted(left) == sorted(UNARY_FUNCTIONS)
