"""A CPU quota, and where groups are made: it limits the named process alone, and nothing is left of it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from marked import wait_for
from places import ROOT

from harness.instruments import control_group as module
from harness.instruments.control_group import CPU, CpuQuota, GroupPlaces, group_places
from harness.records import Unavailable
from suites.offload.cgroup import MEMORY

BURN = """
import sys, time
for line in sys.stdin:
    cpu, wall = time.process_time(), time.perf_counter()
    while time.process_time() - cpu < 0.1:
        pass
    print((time.process_time() - cpu) / (time.perf_counter() - wall), flush=True)
"""

MAKER = """
from harness.instruments.control_group import CpuQuota
print(CpuQuota().path, flush=True)
input()
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
    process.stdin.write("go\n")
    process.stdin.flush()
    return float(process.stdout.readline())


@needs_quota
def test_a_process_gets_no_more_than_its_share_and_leaves_the_group():
    """Only the upper limit: other work lowers the share. A first quota may come on top, 4 ms of 100."""
    own = group_places(CPU).own / "cgroup.procs"
    with started(BURN) as process:
        with CpuQuota() as quota:
            quota.enter(process.pid)
            assert str(process.pid) not in own.read_text().split()
            for share in (0.4, 0.2):
                quota.limit(share)
                assert share_of(process) < 1.1 * share
            assert quota.throttled_s() > 0
            quota.limit(None)
            share_of(process)  # its last period of throttling ends here
            unlimited_s = quota.throttled_s()
            share_of(process)
            assert quota.throttled_s() == unlimited_s
            with pytest.raises(ValueError, match="below the kernel's"):
                quota.limit(0.05)
        assert str(process.pid) in own.read_text().split()
        process.stdin.close()
    assert not quota.path.exists()


@needs_quota
def test_nothing_is_left_of_a_killed_maker():
    with started(MAKER) as process:
        folder = Path(process.stdout.readline().strip())
        assert folder.name.startswith(f"{CPU.prefix}{process.pid}-")
        process.kill()
    wait_for(lambda: not folder.exists())


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


def test_version_2_is_one_file_and_processes_forked_while_it_is_emptied_leave_it_too(group_files):
    listed, moved = group_files
    quota = CpuQuota()
    quota.limit(0.4, period_s=0.02)
    assert (quota.path / "cpu.max").read_text() == "8000 20000"
    quota.limit(None)
    assert (quota.path / "cpu.max").read_text() == "max 10000"
    (quota.path / "cpu.stat").write_text("nr_periods 5\nnr_throttled 3\nthrottled_usec 2000\n")
    assert quota.throttled_s() == 0.002
    for file in ("cpu.max", "cpu.stat"):
        (quota.path / file).unlink()
    os.kill(quota._guard.pid, signal.SIGKILL)
    listed += ["7\n8\n", "9\n", ""]
    quota.close()
    assert moved == ["7", "8", "9"]
    assert not quota.path.exists()


V1 = "30 20 0:26 / {mount} rw,relatime - cgroup cgroup rw,memory\n"
V2 = "30 20 0:26 / {mount} rw,relatime - cgroup2 cgroup2 rw\n"
ABLE = {"": "cpu memory pids\n", "user": "cpu memory\n", "user/session": "\n"}


def tree(tmp_path, monkeypatch, own, mountinfo, groups):
    monkeypatch.setattr(module, "PROC", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    mount = tmp_path / "mount"
    (tmp_path / "cgroup").write_text(own)
    (tmp_path / "mountinfo").write_text(mountinfo.format(mount=mount))
    for name, subtree in groups.items():
        (mount / name).mkdir(parents=True, exist_ok=True)
        (mount / name / "cgroup.procs").touch()
        (mount / name / "cgroup.subtree_control").write_text(subtree)
    return mount


@pytest.mark.parametrize(
    ("own", "mountinfo", "groups", "version", "path", "parent"),
    [
        ("4:memory:/job/7\n0::/\n", V2 + V1, {"job/7": ""}, 1, "job/7", "job/7"),
        ("4:memory:/docker/7\n", V1.replace("0:26 /", "0:26 /docker/7"), {"": ""}, 1, "", ""),
        ("0::/user/session\n", V2, ABLE, 2, "user/session", "user"),  # where groups get the controller
    ],
)
def test_groups_are_made_in_the_own_one_or_above(
    tmp_path, monkeypatch, own, mountinfo, groups, version, path, parent
):
    mount = tree(tmp_path, monkeypatch, own, mountinfo, groups)
    assert group_places(MEMORY) == (version, mount, mount / path, mount / parent)


@pytest.mark.parametrize(
    ("own", "mountinfo", "reason"),
    [
        ("1:cpu:/\n", "", "a CPU quota needs the cpu controller mounted"),
        ("1:cpu:/../job\n", V1.replace("memory", "cpu"), "own CPU cgroup is not visible"),
        ("0::/\n", V2, r"no cgroup.subtree_control of .* has cpu in it"),
        ("1:cpu:/\n", V1.replace("memory", "cpu"), "it is not writable here"),
    ],
)
def test_what_is_missing_is_named(tmp_path, monkeypatch, own, mountinfo, reason):
    tree(tmp_path, monkeypatch, own, mountinfo, {"": "memory\n"})
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(Unavailable, match=reason):
        group_places(CPU)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match=r"^a CPU quota needs root$"):
        group_places(CPU)
