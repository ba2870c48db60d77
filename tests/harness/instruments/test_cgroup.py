"""A memory cgroup: its limit bites, its account counts, and nothing of it is left however its maker ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from marked import wait_for
from places import ROOT

from harness.instruments.control_group import group_places
from harness.records import Unavailable
from suites.offload import cgroup as module
from suites.offload.cgroup import MEMORY, PAGE_B, Cgroup, can_leave

MB = 2**20

TAKE = """
import sys
sys.stdin.readline()
taken = bytearray(int(sys.argv[1]))
"""

TOUCH = """
import mmap, sys
sys.stdin.readline()
path, size, times = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
with open(path, "r+b") as file:
    mapped = mmap.mmap(file.fileno(), size)
for _ in range(times):
    for start in range(0, size, 4096):
        mapped[start] = 1
print(end="done", flush=True)
sys.stdin.readline()
"""

MAKER = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
import cgroup  # not as suites.offload.cgroup: that imports torch
from cgroup import Cgroup
from harness.instruments.control_group import group_places
cgroup.MEMORY = cgroup.MEMORY._replace(prefix=sys.argv[2])
group = Cgroup()
group.enter()
print(group.path, flush=True)
if sys.argv[1] == "raise":
    with group:
        raise ValueError("on purpose")
if sys.argv[1] == "close":
    group.close()
    assert not group.path.exists()
    assert str(os.getpid()) in (group_places(cgroup.MEMORY).own / "cgroup.procs").read_text().split()
sys.stdin.readline()
"""


@pytest.fixture(scope="module", autouse=True)
def _needs_cgroup():
    try:
        Cgroup().close()
    except Unavailable as error:
        pytest.skip(str(error))


def inside(group, code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    group.enter(process.pid)
    return process


def ends(process):
    process.communicate("go\n", timeout=60)
    return process.returncode


def test_the_limit_bites_and_only_the_named_process():
    with Cgroup() as group:
        group.limit(64 * MB)
        assert ends(inside(group, TAKE, 32 * MB)) == 0
        assert ends(inside(group, TAKE, 96 * MB)) == -signal.SIGKILL
        assert ends(inside(group, TAKE, 32 * MB)) == 0
        assert len(bytearray(96 * MB)) == 96 * MB
        assert str(os.getpid()) not in (group.path / "cgroup.procs").read_text().split()


def touched(tmp_path, limit_B):
    """Return the account after a process has touched a new file four times, and the bytes that it read."""
    if not can_leave(str(tmp_path)):
        pytest.skip(f"{tmp_path} is on no disk")
    path = tmp_path / f"mapped{limit_B}"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 64 * MB)
    with Cgroup() as group:
        group.limit(limit_B)
        process = inside(group, TOUCH, path, 64 * MB, 4)
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.read(4) == "done"
        account = group.account()
        lines = Path(f"/proc/{process.pid}/io").read_text().splitlines()
        read_B = next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))
        assert ends(process) == 0
    return account, read_B


def test_pages_of_files_leave_and_come_again_and_what_fits_comes_once(tmp_path):
    account, read_B = touched(tmp_path, 48 * MB)
    assert account.usage_B <= 48 * MB
    assert 32 * MB < account.file_pages * PAGE_B < 48 * MB
    assert account.major_faults > 0
    assert read_B > 3 * (64 - 48) * MB, "in each round but the first what had no room was read again"
    account, read_B = touched(tmp_path, 128 * MB)
    assert account.file_pages * PAGE_B == pytest.approx(64 * MB, rel=0.02)
    assert read_B < MB
    assert account.private_B + account.file_pages * PAGE_B < account.usage_B


def made_by(how, prefix=MEMORY.prefix):
    """Start a process that makes a group and is in it; return it and the group's folder."""
    process = subprocess.Popen(
        [sys.executable, "-c", MAKER, how, prefix],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'suites/offload'}"},
        start_new_session=True,
    )
    return process, Path(process.stdout.readline().strip())


@pytest.mark.parametrize(("how", "code"), [("close", 0), ("raise", 1), ("wait", 0)])
def test_nothing_is_left_after_its_end(how, code):
    process, folder = made_by(how)
    assert folder.name.startswith(f"{MEMORY.prefix}{process.pid}-")
    assert ends(process) == code
    wait_for(lambda: not folder.exists())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_after_its_whole_process_group_is_killed(number):
    process, folder = made_by("wait")
    assert folder.is_dir()
    os.killpg(process.pid, number)
    process.wait(timeout=60)
    process.communicate()
    wait_for(lambda: not folder.exists())


def test_the_next_start_removes_what_was_left_and_only_that(monkeypatch):
    """Under names of its own: another run of the harness on this machine would remove the group first."""
    prefix = f"harness-test-{os.getpid()}-"
    monkeypatch.setattr(module, "MEMORY", MEMORY._replace(prefix=prefix))
    process, folder = made_by("wait", prefix)
    for guard in guards(folder):
        os.kill(guard, signal.SIGKILL)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=60)
    process.communicate()
    assert folder.is_dir(), "nobody was left to remove it"
    other, kept = made_by("wait", prefix)
    stranger = folder.with_name(f"another-program-{os.getpid()}")
    stranger.mkdir()
    # This process did not start one tick after boot.
    of_another_start = group_places(MEMORY).parent / f"{prefix}{os.getpid()}-1-0"
    of_another_start.mkdir()
    try:
        Cgroup().close()
        assert not folder.exists()
        assert not of_another_start.exists()
        assert kept.is_dir()
        assert stranger.is_dir()
    finally:
        stranger.rmdir()
        other.communicate("go\n", timeout=60)
    wait_for(lambda: not kept.exists())


def guards(folder):
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            words = (entry / "cmdline").read_text().split("\0")
        except OSError:
            continue
        if words[0] == "sh" and str(folder) in words:
            found.append(int(entry.name))
    return found
