"""A memory cgroup: its limit bites, its account counts, and nothing of it is left however its maker ends."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from marked import wait_for

from harness.instruments import control_group
from harness.instruments.control_group import group_places
from harness.records import Unavailable
from suites.offload import cgroup as module
from suites.offload.cgroup import MEMORY, PAGE_B, Cgroup, can_leave

ROOT = Path(__file__).parents[3]
MB = 2**20


@pytest.fixture
def _needs_cgroup():
    try:
        Cgroup().close()
    except Unavailable as error:
        pytest.skip(str(error))


needs_cgroup = pytest.mark.usefixtures("_needs_cgroup")

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


def inside(group, code, *arguments):
    """Run the code in a process of the group, once it gets a line."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    group.enter(process.pid)
    return process


def ends(process):
    process.communicate("go\n", timeout=60)
    return process.returncode


@needs_cgroup
def test_the_limit_bites():
    with Cgroup() as group:
        group.limit(64 * MB)
        assert ends(inside(group, TAKE, 32 * MB)) == 0
        assert ends(inside(group, TAKE, 96 * MB)) == -signal.SIGKILL
        assert ends(inside(group, TAKE, 32 * MB)) == 0


@needs_cgroup
def test_only_the_named_process_is_limited():
    with Cgroup() as group:
        group.limit(16 * MB)
        inside(group, TAKE, 0).communicate("go\n", timeout=60)
        assert len(bytearray(32 * MB)) == 32 * MB
        assert str(os.getpid()) not in (group.path / "cgroup.procs").read_text().split()


@pytest.fixture
def mapped(tmp_path):
    """Return a file with no page in memory: blocks of the disk that were never touched."""
    if not can_leave(str(tmp_path)):
        pytest.skip(f"{tmp_path} is on no disk")
    path = tmp_path / "mapped"
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 64 * MB)
    return path


def touched(path, limit_B, times):
    """Return the group's account after a process has touched the full file, and the bytes that it read."""
    with Cgroup() as group:
        group.limit(limit_B)
        process = inside(group, TOUCH, path, 64 * MB, times)
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.read(4) == "done"
        account = group.account()
        lines = Path(f"/proc/{process.pid}/io").read_text().splitlines()
        read_B = next(int(line.split()[1]) for line in lines if line.startswith("read_bytes"))
        assert ends(process) == 0
    return account, read_B


@needs_cgroup
def test_pages_of_files_leave_and_come_again(mapped):
    account, read_B = touched(mapped, 48 * MB, times=4)
    assert account.usage_B <= 48 * MB
    assert 32 * MB < account.file_pages * PAGE_B < 48 * MB
    assert account.major_faults > 0
    assert read_B > 3 * (64 - 48) * MB, "in each round but the first what had no room was read again"


@needs_cgroup
def test_what_fits_comes_once(mapped):
    account, read_B = touched(mapped, 128 * MB, times=4)
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


@needs_cgroup
@pytest.mark.parametrize(("how", "code"), [("close", 0), ("raise", 1), ("wait", 0)])
def test_nothing_is_left_after_its_end(how, code):
    process, folder = made_by(how)
    assert folder.name.startswith(f"{MEMORY.prefix}{process.pid}-")
    process.communicate("go\n", timeout=60)
    assert process.returncode == code
    wait_for(lambda: not folder.exists())


@needs_cgroup
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_after_its_whole_process_group_is_killed(number):
    process, folder = made_by("wait")
    assert folder.is_dir()
    os.killpg(process.pid, number)
    process.wait(timeout=60)
    process.communicate()
    wait_for(lambda: not folder.exists())


@needs_cgroup
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
    try:
        Cgroup().close()
        assert not folder.exists()
        assert kept.is_dir()
        assert stranger.is_dir()
    finally:
        stranger.rmdir()
        other.communicate("go\n", timeout=60)
    wait_for(lambda: not kept.exists())


def guards(folder):
    """Return the processes that wait to remove that group."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_text().split("\0")
            except OSError:
                continue
            if words[0] == "sh" and str(folder) in words:
                found.append(int(entry.name))
    return found


@needs_cgroup
def test_a_group_whose_number_came_again_is_of_a_maker_that_is_gone():
    where = group_places(MEMORY)
    # This process did not start one tick after boot.
    left = where.parent / f"{MEMORY.prefix}{os.getpid()}-1-0"
    left.mkdir()
    Cgroup().close()
    assert not left.exists()


# What is missing, and version 2, on a tree of plain files.


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Write what /proc and the mount would contain; return the mount."""
    monkeypatch.setattr(control_group, "PROC", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)

    def write(own, mountinfo, groups=()):
        mount = tmp_path / "mount"
        (tmp_path / "cgroup").write_text(own)
        (tmp_path / "mountinfo").write_text(mountinfo.format(mount=mount))
        for name, subtree in groups:
            (mount / name).mkdir(parents=True, exist_ok=True)
            (mount / name / "cgroup.procs").touch()
            if subtree is not None:
                (mount / name / "cgroup.subtree_control").write_text(subtree)
        return mount

    return write


VERSION_1 = "30 20 0:26 / {mount} rw,relatime - cgroup cgroup rw,memory\n"
VERSION_2 = "30 20 0:26 / {mount} rw,relatime - cgroup2 cgroup2 rw\n"


def test_version_1_makes_groups_in_the_own_one(tree):
    mount = tree("4:memory:/job/7\n0::/\n", VERSION_2 + VERSION_1, [("job/7", None)])
    assert group_places(MEMORY) == (1, mount, mount / "job/7", mount / "job/7")


def test_a_container_sees_its_own_group_at_the_top(tree):
    mountinfo = "30 20 0:26 /docker/7 {mount} rw,relatime - cgroup cgroup rw,memory\n"
    mount = tree("4:memory:/docker/7\n", mountinfo, [("", None)])
    assert group_places(MEMORY).own == mount


def test_version_2_makes_groups_where_they_get_the_controller(tree):
    groups = [("", "cpu memory pids\n"), ("user", "cpu memory\n"), ("user/session", "\n")]
    mount = tree("0::/user/session\n", VERSION_2, groups)
    assert group_places(MEMORY) == (2, mount, mount / "user/session", mount / "user")


def test_version_2_without_the_controller(tree):
    tree("0::/user\n", VERSION_2, [("", "cpu\n"), ("user", "\n")])
    with pytest.raises(Unavailable, match=r"no cgroup.subtree_control of .* has memory in it"):
        group_places(MEMORY)


def test_without_a_mount(tree):
    tree("4:memory:/\n", "")
    with pytest.raises(Unavailable, match="needs the memory controller mounted"):
        group_places(MEMORY)


def test_an_own_group_that_cannot_be_seen(tree):
    tree("4:memory:/../job\n", VERSION_1, [("", None)])
    with pytest.raises(Unavailable, match="own memory cgroup is not visible"):
        group_places(MEMORY)


def test_without_root(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(Unavailable, match=r"^a memory cgroup needs root$"):
        group_places(MEMORY)


def test_files_of_a_tmpfs_have_no_disk(tmp_path, monkeypatch):
    monkeypatch.setattr(control_group, "PROC", tmp_path)
    device = tmp_path.stat().st_dev
    where = f"30 20 {os.major(device)}:{os.minor(device)} / / rw - "
    for kind, leaves in (("tmpfs", False), ("ext4", True)):
        (tmp_path / "mountinfo").write_text(f"29 1 0:999 / /x rw - tmpfs tmpfs rw\n{where}{kind} x rw\n")
        assert can_leave(str(tmp_path)) == leaves


def test_where_nothing_can_be_written(tree, monkeypatch):
    tree("4:memory:/job\n", VERSION_1, [("job", None)])
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(Unavailable, match=r"it is not writable here"):
        group_places(MEMORY)
