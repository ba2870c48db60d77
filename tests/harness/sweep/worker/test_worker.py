"""The child on its own: what its exceptions are called, its limit on memory, its lifeline, its cost."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
import types
from contextlib import suppress

import psutil
from toy.jobs_sweep import wait_for
from toy.sweep import cell, environ

from harness.config.code_fingerprint import ROOT
from harness.instruments.distributed.rank_pool import RankFailed, RankTimeout
from harness.records import Status, Unavailable, WrongResult
from harness.sweep import failure_classification
from harness.sweep.environment import describe
from harness.sweep.worker import host


class OutOfMemoryError(RuntimeError):
    """Named as torch names its own, whatever it says."""


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return failure_classification.of_exception(caught, "suites")


OF_TORCH = "DefaultCPUAllocator: can't allocate memory: you tried ..."
STATUSES = {
    Status.OUT_OF_MEMORY: [
        MemoryError(),
        OutOfMemoryError("CUDA"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError(OF_TORCH),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("std::bad_alloc"),
        RankFailed("rank 1: OutOfMemoryError: CUDA out of memory."),
    ],
    Status.TIMED_OUT: [TimeoutError("rank 1 gave no answer"), RankTimeout("rank 1 gave no answer")],
    Status.CRASHED: [
        RankFailed("rank 1 was killed by SIGKILL"),
        ValueError("out of memory"),
        KeyboardInterrupt(),
        ModuleNotFoundError("No module named 'json.x'", name="json.x"),
    ],
    Status.UNAVAILABLE: [ModuleNotFoundError("No 'nosuch.x'", name="nosuch.x"), Unavailable("no GPU")],
    Status.WRONG_RESULT: [WrongResult("loss")],
}


def test_an_exception_has_one_status():
    for status, errors in STATUSES.items():
        assert {repr(error): raised(error)[0] for error in errors} == {repr(one): status for one in errors}


def test_a_worker_loads_nothing_heavy_by_itself():
    heavy = {"torch", "numpy", "pandas", "hydra", "omegaconf", "matplotlib", "scipy", "deepspeed", "triton"}
    code = f"import sys, harness.sweep.worker; sys.exit(bool({heavy} & set(sys.modules)))"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, cwd=ROOT)


def worker(lifeline):
    job = {"package": "toy_suites", "limits": [100.0, None], "cells": [cell("leave_child_and_hang")]}
    events, events_write = os.pipe()
    child = subprocess.Popen(
        [sys.executable, "-m", "harness.sweep.worker", str(events_write), str(lifeline)],
        stdin=subprocess.PIPE,
        pass_fds=(events_write, lifeline),
        start_new_session=True,
        env=environ(),
    )
    os.close(events_write)
    child.stdin.write(json.dumps({**job, "sampling": None}).encode())
    child.stdin.close()
    return child, open(events, "rb")


def group_of(child):
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getpgid(process.pid) == child.pid and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def test_it_dies_with_its_parent_and_all_that_it_started_even_while_it_hangs_in_c():
    read, write = os.pipe()
    child, said = worker(read)
    os.close(read)
    wait_for(lambda: len(group_of(child)) == 2)
    time.sleep(0.2)
    assert child.poll() is None
    os.close(write)
    assert child.wait(20) == -signal.SIGKILL
    wait_for(lambda: not group_of(child))
    assert b"CellFinished" not in said.read()
    said.close()


def test_it_dies_where_its_parent_died_first():
    read, write = os.pipe()
    os.close(write)
    child, said = worker(read)
    os.close(read)
    assert child.wait(20) == -signal.SIGKILL
    assert said.read() == b""
    said.close()


def test_the_host_is_the_gpu_that_torch_sees_or_the_cpu():
    gpu = types.SimpleNamespace(name="A GPU", total_memory=80 << 30)
    torch, without = types.ModuleType("torch"), types.ModuleType("torch")
    torch.cuda = types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 2)
    torch.cuda.get_device_properties = lambda number: gpu
    found = host(torch)
    assert (found.device, found.device_name, found.devices, found.memory_B) == ("cuda", "A GPU", 2, 80 << 30)
    without.cuda = types.SimpleNamespace(is_available=lambda: False)
    for torch in (None, without):
        found = host(torch)
        assert (found.device, found.devices, found.memory_B) == ("cpu", 1, describe().memory_B)
        assert found.cores == len(os.sched_getaffinity(0))


def test_the_last_lines_are_few_short_and_printable_and_of_a_long_stack_the_innermost_frames():
    text = "\n".join(f"line {i}" for i in range(100)) + "\n\x1b[31m" + "x" * 5000 + "\udc80"
    lines = failure_classification.last_lines(text).splitlines()
    assert lines[1] == "line 81"
    assert len(lines) == 21
    assert len(lines[-1]) == 300
    assert all(line.isprintable() for line in lines)
    assert failure_classification.last_lines("\n \n") == ""
    before, frames = [f"printed {i}" for i in range(30)], [f"frame {i}" for i in range(50)]
    stack = ["Fatal Python error: Aborted", "Stack (most recent call first):", *frames]
    c_stack = ["Current thread's C stack trace (most recent call first):", *["Binary file"] * 30]
    lines = failure_classification.last_lines("\n".join([*before, *stack, *c_stack])).splitlines()[1:]
    assert lines == [*before[-9:], *stack[:11]]
