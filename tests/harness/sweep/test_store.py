"""Records on disk: whole lines or none, broken lines set aside, nothing lost."""

import errno
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from places import PYTHONPATH
from toy.sweep import cell

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


@pytest.mark.parametrize("cut", [1, 10, 200])
def test_a_torn_last_line_is_set_aside_and_named(tmp_path, caplog, cut):
    path = write(tmp_path, record(0), record(1))
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    path.write_bytes(whole[: first + cut])
    assert read_records(tmp_path) == [record(0)]
    assert "line 2" in caplog.text
    assert path.read_bytes() == whole[: first + cut]  # reading changes nothing
    with Store(tmp_path) as store:
        assert list(store.records.values()) == [record(0)]
        store.append(record(2))
    assert "records.torn" in caplog.text
    assert (tmp_path / "records.torn").read_bytes() == whole[first : first + cut] + b"\n"
    assert read_records(tmp_path) == [record(0), record(2)]


def test_a_whole_record_without_its_end_of_line_is_kept(tmp_path):
    path = write(tmp_path, record(0), record(1))
    path.write_bytes(path.read_bytes()[:-1])
    write(tmp_path, record(2))
    assert read_records(tmp_path) == [record(0), record(1), record(2)]
    assert not (tmp_path / "records.torn").exists()


@pytest.mark.parametrize(
    "line",
    [
        b"not json",
        b"{}",
        b"[1, 2]",
        b"null",
        b'{"schema": 2}',
        b'{"schema": 2, "cell": []}',
        b"\xff\xfe\x00",
        b"\x00" * 50,
        b"[" * 100_000,
        record_to_json(record(5, "a_new_status")).encode(),
        b"",
    ],
    ids=range(11),
)
def test_a_broken_line_in_the_middle_is_passed_over_or_set_aside(tmp_path, caplog, line):
    path = write(tmp_path, record(0), record(1))
    first, second = path.read_bytes().splitlines()
    path.write_bytes(first + b"\n" + line + b"\n" + second + b"\n")
    assert read_records(tmp_path) == [record(0), record(1)]
    assert "line 2" in caplog.text
    write(tmp_path, record(2))
    assert (tmp_path / "records.torn").read_bytes() == line + b"\n"
    assert path.read_bytes().splitlines()[:2] == [first, second]
    assert read_records(tmp_path) == [record(0), record(1), record(2)]


GARBAGE = st.binary(max_size=40).filter(lambda line: b"\n" not in line)


@settings(max_examples=60, deadline=None)
@given(lines=st.lists(st.one_of(st.integers(0, 3), GARBAGE), max_size=8), cut=st.integers(0, 400))
def test_whatever_a_file_holds_no_whole_record_and_no_byte_of_the_rest_is_lost(lines, cut):
    good = [record_to_json(record(number)).encode() for number in range(4)]
    texts = [good[line] if isinstance(line, int) else line for line in lines]
    whole = b"".join(text + b"\n" for text in texts)
    left = whole[: max(0, len(whole) - cut)].split(b"\n")
    left = left if left[-1] else left[:-1]
    stand = [text for text in left if text in good]
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "records.jsonl"
        path.write_bytes(whole[: max(0, len(whole) - cut)])
        with Store(Path(name)) as store:
            expected = {one.cell.id: one for one in (record_from_json(json.loads(text)) for text in stand)}
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


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_one_line(tmp_path):
    tmp_path.chmod(0o555)
    with pytest.raises(StoreError, match="Permission denied"):
        Store(tmp_path)


def test_a_folder_without_records_is_named(tmp_path):
    with pytest.raises(StoreError, match=r"holds no records\.jsonl"):
        read_records(tmp_path)


def test_one_sweep_at_a_time(tmp_path):
    with Store(tmp_path) as store:
        with pytest.raises(
            StoreError, match=rf"another sweep \(pid {os.getpid()}\) is writing into {tmp_path}"
        ):
            Store(tmp_path)
        store.append(record(0))
        assert read_records(tmp_path) == [record(0)]  # reading needs no lock
    with Store(tmp_path) as store:
        assert list(store.records.values()) == [record(0)]


def test_a_lock_dies_with_its_holder(tmp_path):
    hold = "import sys, time; from test_store import *; store = Store(Path(sys.argv[1]))"
    command = [sys.executable, "-c", f"{hold}; print('held', flush=True); time.sleep(100)", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=FINDS_THIS) as holder:
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StoreError, match=rf"pid {holder.pid}\)"):
            Store(tmp_path)
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


@pytest.mark.slow
def test_a_hundred_thousand_records_are_read(tmp_path):
    names = [f"peak_memory_{i}" for i in range(8)]
    measurements = tuple(Measurement(name, "B", "simulated", "fake_step", (1.5e9,)) for name in names)
    config = {"workload": {f"field_{i}": i * 1.5 for i in range(30)}, "settings": {"mode": "full"}}
    one = record()._replace(measurements=measurements, conditions={"device": "cpu", "program": "host"})
    line = record_to_json(one._replace(cell=one.cell._replace(id="its id", config=config)))
    assert line.count('"its id"') == 1
    with open(tmp_path / "records.jsonl", "w") as file:
        for number in range(100_000):
            file.write(line.replace("its id", f"{number:016x}") + "\n")
    size_B = (tmp_path / "records.jsonl").stat().st_size
    assert size_B > 1.2e8
    records = read_records(tmp_path)
    assert [record.cell.id for record in records] == [f"{number:016x}" for number in range(100_000)]
    assert records[-1].measurements == measurements


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
