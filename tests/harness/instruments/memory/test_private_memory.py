"""A limit on private memory: what exceeds it fails, what it does not count does not, and it goes again."""

import os
import subprocess
import sys

import pytest
from places import ROOT

from harness.instruments.memory.process_memory import EXACT

MIB = 2**20
IMPORTS = """
import mmap, resource, subprocess, sys
from harness.instruments.memory.process_memory import private_bytes, private_limit
MIB = 2**20
"""


def child(code, **environment):
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS + code],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


LIMITED = """
import torch
torch.zeros(1024).sum()
before = resource.getrlimit(resource.RLIMIT_DATA)
with private_limit(private_bytes() + 48 * MIB):
    within = bytearray(32 * MIB)
    for more in (lambda: bytearray(32 * MIB), lambda: torch.empty(64 * MIB, dtype=torch.uint8)):
        try:
            more()
        except (MemoryError, RuntimeError) as error:
            print("failed", "allocate memory" in str(error))
    del within
    print(len(bytearray(32 * MIB)) // MIB)
print(torch.empty(64 * MIB, dtype=torch.uint8).nbytes // MIB)
try:
    with private_limit(private_bytes() + 256 * MIB):
        code = 'import resource; print(resource.getrlimit(resource.RLIMIT_DATA)[0])'
        started = subprocess.run([sys.executable, '-c', code], capture_output=True, check=True).stdout
        print(int(started) == resource.getrlimit(resource.RLIMIT_DATA)[0])
        raise KeyError
except KeyError:
    print(resource.getrlimit(resource.RLIMIT_DATA) == before)
hard_B = private_bytes() + 64 * MIB
resource.setrlimit(resource.RLIMIT_DATA, (hard_B, hard_B))
with private_limit(2 * hard_B):
    print(resource.getrlimit(resource.RLIMIT_DATA) == (hard_B, hard_B))
"""
"""What is started within has the limit for itself; a hard limit is not exceeded."""


def test_within_it_an_allocation_succeeds_beyond_it_fails_and_it_goes_again():
    assert child(LIMITED) == ["failed", "False", "failed", "True", "32", "64", "True", "True", "True"]


HELD_AND_HOLES = """
before_B = private_bytes()
shared = mmap.mmap(-1, 64 * MIB)
shared.write(bytes(64 * MIB))
held = bytearray(100 * MIB)
print(private_bytes() - before_B)
del held
print(private_bytes() - before_B)
before_B = private_bytes()
blocks = [bytearray(64 * 1024) for _ in range(400)]
del blocks[:-1]
print(private_bytes() - before_B)
"""
"""With 64 MiB of shared memory, which do not count; then 25 MiB of blocks below malloc's own threshold, all
but the last given back."""


def test_private_bytes_are_those_that_were_allocated_privately_and_with_exact_memory_those_in_use():
    held_B, freed_B, holes_B = map(int, child(HELD_AND_HOLES))
    assert held_B == pytest.approx(100 * MIB, abs=MIB)
    assert abs(freed_B) <= MIB
    assert holes_B > 10 * MIB  # the last block keeps the heap
    assert int(child(HELD_AND_HOLES, **EXACT)[2]) < 2 * MIB
