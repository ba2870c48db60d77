"""A limit on private memory: what exceeds it fails, what it does not count does not, and it goes again."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from harness.instruments.memory import process_memory
from harness.instruments.memory.process_memory import (
    EXACT,
    SMALL_STACKS,
    STACK_KIB,
    private_bytes,
    private_limit,
)
from harness.records import Unavailable

ROOT = Path(__file__).parents[4]
MIB = 2**20


def child(code, *command, **environment):
    """Return what the code printed in a process of its own."""
    before = (
        "import mmap, resource, threading\n"
        "from harness.instruments.memory.process_memory import private_bytes, private_limit\n"
        "MIB = 2**20\n"
    )
    done = subprocess.run(
        [*command, sys.executable, "-c", before + code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_within_it_an_allocation_succeeds_and_beyond_it_fails():
    said = child(
        "with private_limit(private_bytes() + 48 * MIB):\n"
        "    within = bytearray(32 * MIB)\n"
        "    print(len(within) // MIB)\n"
        "    try:\n"
        "        bytearray(32 * MIB)\n"
        "    except MemoryError:\n"
        "        print('failed')\n"
        "    del within\n"
        "    print(len(bytearray(32 * MIB)) // MIB)\n"
    )
    assert said == ["32", "failed", "32"]


def test_torch_says_what_could_not_be_had():
    said = child(
        "import torch\n"
        "torch.zeros(1024).sum()\n"
        "with private_limit(private_bytes() + 48 * MIB):\n"
        "    print(torch.empty(32 * MIB, dtype=torch.uint8).nbytes // MIB)\n"
        "    try:\n"
        "        torch.empty(64 * MIB, dtype=torch.uint8)\n"
        "    except (RuntimeError, MemoryError) as error:\n"
        '        print("allocate memory" in str(error))\n'
        "print(torch.empty(64 * MIB, dtype=torch.uint8).nbytes // MIB)\n"
    )
    assert said == ["32", "True", "64"]


def test_shared_files_are_not_counted(tmp_path):
    (tmp_path / "file").write_bytes(bytes(64 * MIB))
    said = child(
        f"file = open({str(tmp_path / 'file')!r}, 'r+b')\n"
        "before_B = private_bytes()\n"
        "with private_limit(before_B + 16 * MIB):\n"
        "    mapped = mmap.mmap(file.fileno(), 64 * MIB)\n"
        "    for begin in range(0, 64 * MIB, MIB):\n"
        "        mapped[begin:begin + MIB] = bytes([1]) * MIB\n"
        "    print(private_bytes() - before_B < 4 * MIB, sum(mapped[::MIB]))\n"
    )
    assert said == ["True", "64"]


def test_what_is_started_within_has_the_limit_for_itself():
    said = child(
        "import subprocess, sys\n"
        "with private_limit(private_bytes() + 256 * MIB):\n"
        "    code = 'import resource; print(resource.getrlimit(resource.RLIMIT_DATA)[0])'\n"
        "    told = subprocess.run([sys.executable, '-c', code], capture_output=True, check=True).stdout\n"
        "    print(int(told) == resource.getrlimit(resource.RLIMIT_DATA)[0])\n"
    )
    assert said == ["True"]


@pytest.mark.parametrize("error", [None, MemoryError])
def test_the_limit_is_as_it_was_afterwards(error):
    before = resource.getrlimit(resource.RLIMIT_DATA)
    most_B = private_bytes() + 2**34
    try:
        with private_limit(most_B):
            assert resource.getrlimit(resource.RLIMIT_DATA) == (most_B, before[1])
            if error:
                raise error
    except MemoryError:
        assert error
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_hard_limit_is_not_exceeded():
    said = child(
        "most_B = private_bytes() + 64 * MIB\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (most_B, most_B))\n"
        "with private_limit(2 * most_B):\n"
        "    print(resource.getrlimit(resource.RLIMIT_DATA) == (most_B, most_B))\n"
    )
    assert said == ["True"]


def test_private_bytes_are_those_that_were_allocated():
    said = child(
        "before_B = private_bytes()\n"
        "held = bytearray(100 * MIB)\n"
        "print(private_bytes() - before_B)\n"
        "del held\n"
        "print(private_bytes() - before_B)\n"
    )
    assert int(said[0]) == pytest.approx(100 * MIB, abs=MIB)
    assert abs(int(said[1])) <= MIB


HOLES = (
    "before_B = private_bytes()\n"
    "blocks = [bytearray(64 * 1024) for _ in range(400)]\n"
    "del blocks[:-1]\n"
    "print(private_bytes() - before_B)\n"
)
"""25 MiB of blocks below malloc's own threshold, all but the last given back."""


def test_exact_memory_follows_what_lives_in_it():
    assert int(child(HOLES, **EXACT)[0]) < 2 * MIB
    assert int(child(HOLES)[0]) > 10 * MIB  # without, the last block keeps the heap


STACKS = (
    "done = threading.Event()\n"
    "before_B = private_bytes()\n"
    "threads = [threading.Thread(target=done.wait) for _ in range(8)]\n"
    "[one.start() for one in threads]\n"
    "print(private_bytes() - before_B)\n"
    "done.set()\n"
)


def test_small_stacks_are_as_small_as_stated():
    taken_B = int(child(STACKS, *SMALL_STACKS, **EXACT)[0])
    assert taken_B == pytest.approx(8 * STACK_KIB * 1024, rel=0.2)


def test_a_kernel_that_does_not_tell_is_unavailable(monkeypatch):
    monkeypatch.setattr(process_memory.Path, "read_text", lambda path: "VmRSS:\t 100 kB\n")
    with pytest.raises(Unavailable, match="VmData"):
        private_bytes()
