"""Records on disk: whole lines or none, broken lines set aside, nothing lost."""

import errno
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from places import PYTHONPATH
from toy.sweep import cell

from harness.config.code_fingerprint import ROOT
from harness.records import SCHEMA, Limits, Measurement, Record, record_from_json, record_to_json
from harness.sweep.environment import describe
from harness.sweep.store import Store, StoreError, copy_run, read_records

LIMITS = Limits(60.0)
FINDS_THIS = os.environ | {"PYTHONPATH": f"{Path(__file__).parent}{os.pathsep}{PYTHONPATH}"}


def record(repeat=0, status="ok", limits=LIMITS):
    measurements = (Measurement("time", "s", "measured", "clock", (0.25, 0.5)),)
    return Record(cell(repeat=repeat), status, measurements=measurements, notes=("said",), limits=limits)


def write(folder, *records):
    with Store(folder) as store:
        for one in records:
            store.append(one)
    return folder / "records.jsonl"


def test_the_later_record_of_a_cell_counts(tmp_path):
    path = write(tmp_path, record(0, "timed_out"), record(1), record(0, limits=Limits(120.0)))
    assert read_records(tmp_path) == [record(0, limits=Limits(120.0)), record(1)]
    assert len(path.read_text().splitlines()) == 3


def test_a_torn_last_line_is_set_aside_and_named(tmp_path, caplog):
    path = write(tmp_path, record(0), record(1))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    path.write_bytes(whole[: first + 10])
    assert read_records(tmp_path) == [record(0)]
    assert "line 2" in caplog.text
    with Store(tmp_path) as store:
        store.append(record(2))
    assert "moved invalid records to records.torn: line 2" in caplog.text
    assert (tmp_path / "records.torn").read_bytes() == whole[first : first + 10] + b"\n"
    assert read_records(tmp_path) == [record(0), record(2)]


BROKEN = [
    *(b"not json", b"{}", b"[1, 2]", b"null", b"", b"\xff\xfe\x00", b"\x00" * 50, b"[" * 100_000),
    *(b'{"schema": 2}', b'{"schema": 2, "cell": []}', record_to_json(record(5, "a_new_status")).encode()),
]
GARBAGE = st.binary(max_size=40).filter(lambda line: b"\n" not in line) | st.sampled_from(BROKEN)


@settings(max_examples=30, deadline=None)
@given(lines=st.lists(st.one_of(st.integers(0, 3), GARBAGE), max_size=8), cut=st.integers(0, 400))
@example(lines=[0, *BROKEN, 1], cut=0)
@example(lines=[0, 1], cut=1)
def test_whatever_a_file_holds_no_whole_record_and_no_byte_of_the_rest_is_lost(lines, cut):
    good = [record_to_json(record(number)).encode() for number in range(4)]
    texts = [good[line] if isinstance(line, int) else line for line in lines]
    whole = b"".join(text + b"\n" for text in texts)
    content = whole[: max(0, len(whole) - cut)]
    left = content.split(b"\n")
    left = left if left[-1] else left[:-1]
    stand = [text for text in left if text in good]
    expected = {one.cell.id: one for one in (record_from_json(json.loads(text)) for text in stand)}
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "records.jsonl"
        path.write_bytes(content)
        assert read_records(Path(name)) == list(expected.values())
        assert path.read_bytes() == content  # reading changes nothing
        with Store(Path(name)) as store:
            assert store.records == expected
        assert path.read_bytes() == b"".join(text + b"\n" for text in stand)
        torn = Path(name) / "records.torn"
        aside = [text for text in left if text not in stand]
        assert (torn.read_bytes() if torn.exists() else b"") == b"".join(text + b"\n" for text in aside)


def test_another_schema_version_is_refused_and_nothing_touched(tmp_path):
    path = write(tmp_path, record(0), record(1))
    lines = path.read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {"schema": 99})
    path.write_text("\n".join(["broken", *lines]) + "\n")
    before = path.read_bytes()
    for use in (Store, read_records):
        with pytest.raises(StoreError, match=rf"records.jsonl, line 3: .*version 99, not {SCHEMA}"):
            use(tmp_path)
    assert path.read_bytes() == before
    assert not (tmp_path / "records.torn").exists()


FILL = """
import resource, sys
from pathlib import Path
from test_store import Store, StoreError, record
with Store(Path(sys.argv[1])) as store:
    store.append(record(0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (store._end_B + 100, resource.RLIM_INFINITY))
    for number in (1, 2):
        try:
            store.append(record(number))
        except StoreError as error:
            print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    store.append(record(3))
"""


def test_a_write_cut_short_by_the_kernel_leaves_no_part(tmp_path):
    """The kernel writes 100 bytes of the line and no more, as on a disk that fills up."""
    done = subprocess.run(
        [sys.executable, "-c", FILL, str(tmp_path)],
        capture_output=True,
        text=True,
        env=FINDS_THIS,
    )
    assert done.returncode == 0, done.stderr
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
        f"cannot write the record of cell {record(n).cell.id} to {tmp_path / 'records.jsonl'}" for n in (1, 2)
    ]
    assert read_records(tmp_path) == [record(0), record(3)]
    assert (tmp_path / "records.jsonl").read_text().endswith("\n")


def test_a_full_disk_is_one_clear_error(tmp_path, monkeypatch):
    """Half of the line reaches the disk, then there is no space: as ext4 may do across a page."""
    write_to, full = os.write, []

    def write_half(fd, data):
        if full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        full.append(True)
        return write_to(fd, data[: len(data) // 2])

    with Store(tmp_path) as store:
        store.append(record(0))
        monkeypatch.setattr(os, "write", write_half)
        for number in (1, 2):
            with pytest.raises(StoreError, match=r"^cannot write .*(is full|No space left)") as caught:
                store.append(record(number))
            assert "\n" not in str(caught.value)
        assert record(1).cell.id not in store.records
        monkeypatch.undo()
        store.append(record(3))
    assert read_records(tmp_path) == [record(0), record(3)]


def test_an_unwritable_folder_is_one_line(tmp_path):
    """Permission bits do not stop root; a file in the way stops everyone."""
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(StoreError, match=r"^cannot write into .*file.*; choose another with out=\.\.\.$"):
            Store(folder)


def test_a_read_only_folder_is_one_line(tmp_path, monkeypatch):
    tmp_path.chmod(0o555)
    if os.geteuid() == 0:  # who may write anywhere
        monkeypatch.setattr(os, "open", denied)
    with pytest.raises(StoreError, match=r"^cannot write into .*: Permission denied; choose another"):
        Store(tmp_path)


def denied(*_):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_a_folder_without_records_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"holds no records\.jsonl"):
        read_records(tmp_path)


def test_one_sweep_at_a_time_and_a_lock_dies_with_its_holder(tmp_path):
    hold = "import sys, time; from test_store import *; store = Store(Path(sys.argv[1]))"
    hold += "; store.append(record(0)); print('held', flush=True); time.sleep(100)"
    command = [sys.executable, "-c", hold, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=FINDS_THIS) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreError, match=rf"another sweep \(pid {holder.pid}\) is writing into"):
            Store(tmp_path)
        assert read_records(tmp_path) == [record(0)]  # reading needs no lock
        holder.kill()
    Store(tmp_path).close()


def test_the_environment_is_kept_once_by_its_digest(tmp_path):
    environment = describe()
    with Store(tmp_path) as store:
        store.write_environment(environment)
        path = tmp_path / f"environment-{environment.digest}.json"
        before = path.stat()
        store.write_environment(environment)
        assert path.stat() == before
        store.write_environment(environment._replace(commit="another"))
    assert json.loads(path.read_text())["cpu"] == environment.cpu
    assert len(list(tmp_path.glob("environment-*.json"))) == 2


def test_a_run_is_copied_and_never_over_another(tmp_path):
    one, other, out = (tmp_path / name for name in ("one", "other", "out"))
    for number, folder in enumerate((one, other)):
        folder.mkdir()
        write(folder, record(number))
    (one / "plan.json").write_text("{}")
    for _ in range(2):
        copy_run(one, out)
        assert read_records(out) == [record(0)]
        assert (out / "plan.json").read_text() == "{}"
    with pytest.raises(StoreError, match="has the records of another run"):
        copy_run(other, out)
    copy_run(one, one)
    assert read_records(out) == read_records(one) == [record(0)]


HAVING_A_TURN = """
import sys
from pathlib import Path
from harness.sweep.store import turn

with turn(Path(sys.argv[1])):
    print("here", flush=True)
    sys.stdin.readline()
"""


def having_a_turn(folder):
    """Start a process that has its turn until it reads a line."""
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", HAVING_A_TURN, str(folder)]
    return subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def test_who_comes_second_waits_and_says_for_whom(tmp_path):
    folder = tmp_path / "results" / "memory"
    first = having_a_turn(folder)
    assert first.stdout.readline() == "here\n"
    second = having_a_turn(folder)
    assert f"waiting for another process (pid {first.pid})" in second.stderr.readline()
    first.communicate("go on\n", timeout=60)
    output, _ = second.communicate("go on\n", timeout=60)
    assert (first.returncode, second.returncode, output) == (0, 0, "here\n")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_killed_process_leaves_no_lock(tmp_path):
    killed = having_a_turn(tmp_path)
    assert killed.stdout.readline() == "here\n"
    killed.kill()
    killed.communicate(timeout=60)
    assert having_a_turn(tmp_path).communicate("go on\n", timeout=60) == ("here\n", "")
