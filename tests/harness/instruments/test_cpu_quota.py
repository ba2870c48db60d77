"""A CPU quota: it limits the named process alone, can be changed, and nothing of it is left at the end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from marked import wait_for

from harness.instruments import control_group as module
from harness.instruments.control_group import CPU, CpuQuota, GroupPlaces, group_places
from harness.records import Unavailable

ROOT = Path(__file__).parents[3]

BURN = """
import sys, time
for line in sys.stdin:
    cpu, wall = time.process_time(), time.perf_counter()
    while time.process_time() - cpu < 0.1:
        pass
    print((time.process_time() - cpu) / (time.perf_counter() - wall), flush=True)
"""

MAKER = """
import sys
from harness.instruments.control_group import CpuQuota
print(CpuQuota().path, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def _needs_quota():
    try:
        CpuQuota().close()
    except Unavailable as error:
        pytest.skip(str(error))


needs_quota = pytest.mark.usefixtures("_needs_quota")


def started(code):
    return subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    )


def share_of(process):
    """Return the share of a core that it has while it uses 0.1 s of processor time."""
    process.stdin.write("go\n")
    process.stdin.flush()
    return float(process.stdout.readline())


@needs_quota
def test_a_process_gets_no_more_than_its_share():
    """Other work on this machine lowers the share, so that only the upper limit can be asserted.

    The first period's quota may come on top: 4 ms of 100.
    """
    with CpuQuota() as quota, started(BURN) as process:
        quota.enter(process.pid)
        for share in (0.4, 0.2):
            quota.limit(share)
            assert share_of(process) < 1.1 * share
        counted = quota.account()
        assert counted.throttled_periods > 20  # 0.1 s at 4 ms a period, then at 2 ms
        assert counted.throttled_s > 0
        quota.limit(None)
        share_of(process)  # its last period of throttling ends here
        unlimited = quota.account().throttled_periods
        share_of(process)
        assert quota.account().throttled_periods == unlimited
        process.stdin.close()
    assert not quota.path.exists()


@needs_quota
def test_a_process_that_lives_on_leaves_the_group():
    own = group_places(CPU).own
    with started(BURN) as process:
        with CpuQuota() as quota:
            quota.enter(process.pid)
            assert str(process.pid) not in (own / "cgroup.procs").read_text().split()
        assert str(process.pid) in (own / "cgroup.procs").read_text().split()
        process.stdin.close()


@needs_quota
def test_nothing_is_left_of_a_killed_maker():
    with started(MAKER) as process:
        folder = Path(process.stdout.readline().strip())
        assert folder.name.startswith(f"{CPU.prefix}{process.pid}-")
        process.kill()
    wait_for(lambda: not folder.exists())


@needs_quota
def test_a_group_whose_number_came_again_is_of_a_maker_that_is_gone():
    left = group_places(CPU).parent / f"{CPU.prefix}{os.getpid()}-1-0"
    left.mkdir()
    CpuQuota().close()
    assert not left.exists()


@needs_quota
def test_a_quota_below_the_kernels_least_is_refused():
    with CpuQuota() as quota, pytest.raises(ValueError, match="below the kernel's"):
        quota.limit(0.05)


def test_version_2_is_one_file(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "group_places", lambda _: GroupPlaces(2, tmp_path, tmp_path, tmp_path))
    quota = CpuQuota()
    quota.limit(0.4, period_s=0.02)
    assert (quota.path / "cpu.max").read_text() == "8000 20000"
    quota.limit(None)
    assert (quota.path / "cpu.max").read_text() == "max 10000"
    (quota.path / "cpu.stat").write_text("nr_periods 5\nnr_throttled 3\nthrottled_usec 2000\n")
    assert quota.account() == (5, 3, 0.002)
    os.kill(quota._guard.pid, signal.SIGKILL)
    for file in ("cpu.max", "cpu.stat"):
        (quota.path / file).unlink()
    quota.close()


@pytest.fixture
def group_files(tmp_path, monkeypatch):
    """Return what a group lists in turn, and what was moved out; both in place of the kernel's files."""
    monkeypatch.setattr(module, "group_places", lambda _: GroupPlaces(2, tmp_path, tmp_path, tmp_path))
    listed, moved, read_text, write_text = [], [], Path.read_text, Path.write_text

    def read(path, *given, **named):
        return listed.pop(0) if path.name == "cgroup.procs" else read_text(path, *given, **named)

    def write(path, text, *given, **named):
        if path.name != "cgroup.procs":
            return write_text(path, text, *given, **named)
        if text == "1":
            raise PermissionError(text)
        moved.append(text)
        return len(text)

    monkeypatch.setattr(Path, "read_text", read)
    monkeypatch.setattr(Path, "write_text", write)
    return listed, moved


def test_processes_that_are_forked_while_the_group_is_emptied_leave_it_too(group_files):
    listed, moved = group_files
    listed += ["7\n8\n", "9\n", ""]
    quota = CpuQuota()
    quota.close()
    assert moved == ["7", "8", "9"]
    assert not quota.path.exists()


def test_the_guard_ends_where_a_process_cannot_be_moved(group_files):
    listed, _ = group_files
    listed += ["1\n"]
    quota = CpuQuota()
    with pytest.raises(PermissionError):
        quota.close()
    assert quota._guard.wait(10) is not None
    assert not quota.path.exists()


@pytest.mark.parametrize(
    ("own", "mountinfo", "reason"),
    [
        ("1:cpu:/\n", "", "needs the cpu controller mounted"),
        (
            "1:cpu:/../job\n",
            "30 20 0:26 / {mount} rw - cgroup cgroup rw,cpu\n",
            "own CPU cgroup is not visible",
        ),
        ("0::/\n", "30 20 0:26 / {mount} rw - cgroup2 cgroup2 rw\n", "has cpu in it"),
    ],
)
def test_what_is_missing_is_named(tmp_path, monkeypatch, own, mountinfo, reason):
    monkeypatch.setattr(module, "PROC", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    mount = tmp_path / "mount"
    mount.mkdir()
    (mount / "cgroup.subtree_control").write_text("memory\n")
    (tmp_path / "cgroup").write_text(own)
    (tmp_path / "mountinfo").write_text(mountinfo.format(mount=mount))
    with pytest.raises(Unavailable, match=reason):
        group_places(CPU)


def test_without_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match=r"^a CPU quota needs root$"):
        group_places(CPU)
