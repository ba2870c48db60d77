"""Before a sweep: its cells and their identity, the machine, how long it takes, and lines of progress."""

import getpass
import json
import logging
import os
import platform
import subprocess
import sys
import types
from dataclasses import replace
from pathlib import Path

import numpy
import psutil
import pytest
from planned import RUN, cells
from toy.sweep import cell, group

from harness.config.validation import ConfigError
from harness.records import Limits, Record, Sampling
from harness.sweep import environment, sweep
from harness.sweep import plan as module
from harness.sweep.environment import Gpu, describe
from harness.sweep.executors import CellFinished, CellStarted
from harness.sweep.plan import (
    START_UP_S,
    Basis,
    CellEstimate,
    Plan,
    SweepEstimate,
    earlier_seconds,
    estimate,
    plan,
    write_plan,
)
from harness.sweep.progress import Progress
from harness.sweep.store import Store
from harness.sweep.sweep import loaded_digest


def ids(*args, **more):
    return {cell.id for cell in cells(*args, **more)}


def test_the_matrix_is_whole_and_each_cell_once():
    found = cells(RUN)
    assert [(c.workload, c.repeat, c.optimization) for c in found] == [
        (w, r, o) for w in "ab" for r in (0, 1) for o in ("baseline", "fast.x")
    ]
    assert len(ids(RUN)) == 8
    assert {c.seed for c in found} == {7, 8}
    # real steps get a process each, and the rest one per workload
    assert [len(group.cells) for group in plan(RUN, "env", lambda a: "code")] == [1, 1, 1, 1, 4]


def test_identity_depends_on_config_code_and_host_and_on_nothing_else():
    assert ids(RUN) == ids(replace(RUN, limits=Limits(9.0), out=Path("elsewhere"), workers=2))
    in_another_order = {name: dict(reversed(one.items())) for name, one in RUN.workloads.items()}
    assert ids(RUN) == ids(replace(RUN, workloads=in_another_order))
    assert not ids(RUN) & ids(RUN, environment="other")
    assert not ids(RUN) & ids(RUN, code=lambda variant: "new")
    lists = [(), (("fsdp2", {}),), (("fsdp2", {"dp_size": 2}),)]
    variants = tuple(replace(RUN.variants[1], techniques=one) for one in lists)
    found = cells(replace(RUN, variants=variants))
    assert len({one.id for one in found}) == len(found)
    techniques = [one.config.get("techniques") for one in found[:3]]
    assert techniques == [None, [["fsdp2", {}]], [["fsdp2", {"dp_size": 2}]]]
    changed = {**RUN.workloads, "b": {"size": 3, "train": False}}
    assert len(ids(RUN) & ids(replace(RUN, workloads=changed))) == 4
    assert len(ids(RUN) & ids(RUN, code=lambda a: "new" if a.module == "fast" else "code")) == 4


def test_a_file_below_a_folder_or_of_the_configuration_makes_other_cells(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "ROOT", tmp_path)
    monkeypatch.setattr(sweep, "CONF", tmp_path / "elsewhere")
    for name in ("suites/a/one.py", "elsewhere/b.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("1")
    paths = ["suites/a", "conf/b.yaml"]
    before = loaded_digest(paths)
    (tmp_path / "suites/a/__pycache__").mkdir()
    (tmp_path / "suites/a/__pycache__/one.pyc").write_text("2")
    (tmp_path / "suites/a/.hidden.d").mkdir()
    assert loaded_digest(paths) == before
    digests = {before, loaded_digest([]), loaded_digest(["suites/a"])}
    (tmp_path / "elsewhere/b.yaml").write_text("2")
    digests.add(loaded_digest(paths))
    (tmp_path / "suites/a/two.py").write_text("1")
    digests.add(loaded_digest(paths))
    assert len(digests) == 5
    with pytest.raises(ConfigError, match=r"^suite\.loads: conf/c\.yaml: no such file"):
        loaded_digest(["conf/c.yaml"])


LIMITS = Limits(100.0)
GROUPS = plan(replace(RUN, repeats=1), "here", lambda variant: "code")
KEY = ("a", "baseline")


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "RESULTS", (tmp_path / "results", tmp_path / "committed"))
    return tmp_path / "results"


def keep(folder, environment, *seconds, suite="toy", number=0):
    one = cells(RUN)[number]._replace(suite=suite, workload="ab"[number], optimization="baseline")
    with Store(folder) as store:
        store.write_environment(environment)
        for repeat, took_s in enumerate(seconds):
            cell = one._replace(id=f"{one.id}{repeat}")
            store.append(Record(cell, "ok", environment=environment.digest, duration_s=took_s))
        write_plan(folder, Plan(suite, (cell.id,)))


def test_the_median_of_earlier_records_counts_and_the_own_folder_comes_first(results):
    here = describe()
    keep(results / "toy", here, 1.0, 2.0, 40.0)
    keep(results.parent / "committed/reference/toy_long", here, 9.0, 9.0)
    keep(results / "elsewhere", here, 8.0, suite="other")
    (results / "stray").mkdir()
    assert earlier_seconds("toy", results / "new", here) == {KEY: (9.0, Basis.HERE, False)}
    assert earlier_seconds("toy", results / "toy", here) == {KEY: (2.0, Basis.HERE, False)}


def test_the_kind_of_host_decides_and_one_rate_scales_what_others_took(results):
    here = describe()
    keep(results / "toy", here._replace(cpu="another CPU"), 30.0)
    assert earlier_seconds("toy", results / "new", here) == {KEY: (30.0, Basis.ELSEWHERE, False)}
    keep(results / "more", here._replace(cores=here.cores + 1), 10.0, number=-1)
    keep(results / "own", here._replace(commit="other", versions={"torch": "1.0"}), 60.0)
    assert earlier_seconds("toy", results / "own", here) == {
        KEY: (60.0, Basis.HERE, False),
        ("b", "baseline"): (20.0, Basis.ELSEWHERE, False),  # cells take twice as long here
    }


def of_first(seconds=None, groups=GROUPS):
    earlier = {} if seconds is None else {KEY: CellEstimate(seconds, Basis.HERE)}
    return estimate(groups, earlier, 7.0, LIMITS, 1).cells[groups[0].cells[0].id]


def test_a_cell_takes_what_it_took_or_the_default_up_to_its_limit_of_each_turn():
    assert of_first() == (7.0 + START_UP_S, Basis.DEFAULT, False)
    assert of_first(20.0) == (20.0 + START_UP_S, Basis.HERE, False)
    assert of_first(120.0) == (100.0 + START_UP_S, Basis.HERE, True)
    together = plan(replace(RUN, sampling=Sampling()), "here", lambda variant: "code")
    share_s = START_UP_S / len(together[0].cells)
    assert of_first(120.0, together) == (120.0 + share_s, Basis.HERE, False)


CELLS = [cell("nothing"), cell("hang"), cell("nothing", repeat=1)]


def finish(progress, *ends):
    for one, (status, reason) in zip(CELLS, ends, strict=False):
        progress(CellStarted(one.id, "t"))
        progress(CellFinished(one.id, status, reason, 1.25))


def test_elsewhere_each_cell_is_a_line_with_how_long_is_left(tmp_path, caplog):
    caplog.set_level(logging.INFO)
    cells = {one.id: CellEstimate(40.0, Basis.HERE) for one in CELLS}
    clock = iter([100.0, 180.0, 260.0, 300.0])
    with Store(tmp_path) as store:
        store.append(Record(CELLS[0], "timed_out"))  # which is run again
        with Progress([group(*CELLS)], store, SweepEstimate(cells, 1), lambda: next(clock)) as progress:
            traceback = "exit code 1; last printed:\nTraceback\nValueError: of what"
            finish(progress, ("ok", ""), ("crashed", "why\nmore"), ("crashed", traceback))
        store.append(Record(CELLS[2], "ok"))  # which is done already
        finish(Progress([group(*CELLS)], store, SweepEstimate({}, 1)), ("ok", ""))
    third = "exit code 1; last printed: ValueError: of what"
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "1/3 faults nothing baseline: ok (1.2 s); 2 left, about 3 min"),
        ("WARNING", "2/3 faults hang baseline: crashed: why (1.2 s); 1 left, about 80 s"),
        ("WARNING", f"3/3 faults nothing baseline #2: crashed: {third} (1.2 s)"),
        ("INFO", "2/3 faults nothing baseline: ok (1.2 s); 1 left, about 1 s"),
    ]


def test_it_describes_this_machine_and_names_neither_host_nor_user_nor_path():
    found = describe()
    assert found.memory_B == psutil.virtual_memory().total
    assert found.cores == len(psutil.Process().cpu_affinity())
    assert found.python == ".".join(map(str, sys.version_info[:3]))
    assert found.versions["numpy"] == numpy.__version__
    assert found.cpu in Path("/proc/cpuinfo").read_text()
    assert platform.release() in found.system
    text = json.dumps(found)
    for private in (platform.node(), os.path.expanduser("~"), str(Path(__file__).parents[3]), sys.prefix):
        assert private not in text
    assert f'"{getpass.getuser()}"' not in text


def test_its_digest_names_all_and_its_host_what_lasts():
    here = describe()
    assert (describe(), describe().digest) == (here, here.digest)
    later = here._replace(
        commit="0" * 40, dirty=not here.dirty, memory_B=here.memory_B - 4096, system="Linux 7"
    )
    assert later.digest != here.digest
    assert later.host == here.host
    for changed in (
        here._replace(cpu="another"),
        here._replace(memory_B=here.memory_B * 2),
        here._replace(versions={"torch": "2.11"}),
        here._replace(gpus=(Gpu("A GPU", 80 << 30),)),
        describe("2 x 8"),  # ranks that an executor brings
    ):
        assert changed.host != here.host
        assert changed.digest != here.digest
    rated = here._replace(matmul_FLOP_per_s={"fp32": 5e10, "bf16": 2e9})
    assert (rated.digest, rated.host) == (here.digest, here.host)
    assert rated.to_dict()["matmul_FLOP_per_s"]["bf16"] == 2e9


def git(folder, *words):
    settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    command = ["git", *settings, "-C", str(folder), *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def test_the_commit_and_whether_files_differ_from_it(tmp_path, monkeypatch):
    def found():
        return describe().commit, describe().dirty

    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-qm", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    assert found() == (commit, False)
    (tmp_path / "new").write_text("")
    assert found() == (commit, True)
    (tmp_path / "new").unlink()
    (tmp_path / "file").write_text("2")
    assert found() == (commit, True)
    (tmp_path / "site-packages").mkdir()  # the code lies deep in another checkout
    monkeypatch.setattr(environment, "ROOT", tmp_path / "site-packages")
    assert found() == ("", False)
    monkeypatch.setattr(environment, "ROOT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))  # without git
    assert found() == ("", False)


def test_gpus_are_reported_as_nvml_reports_them(monkeypatch):
    down = []
    nvml = types.SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda number: number,
        nvmlDeviceGetName=lambda handle: ["NVIDIA One", "NVIDIA Two"][handle],
        nvmlDeviceGetMemoryInfo=lambda handle: types.SimpleNamespace(total=(handle + 1) << 30),
        nvmlSystemGetDriverVersion=lambda: "580.1",
        nvmlShutdown=lambda: down.append(True),
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found = describe()
    assert found.gpus == (Gpu("NVIDIA One", 1 << 30), Gpu("NVIDIA Two", 2 << 30))
    assert found.driver == "580.1"
    assert down == [True]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert (describe().gpus, describe().driver) == ((), "")


def test_workers_share_the_time_and_a_forked_child_imports_nothing():
    number = sum(len(group.cells) for group in GROUPS)
    found = estimate(GROUPS, {}, 20.0, LIMITS, 2)
    assert found.seconds == pytest.approx((number * 20.0 + len(GROUPS) * START_UP_S) / 2)
    assert found.bases == {Basis.DEFAULT: number}
    assert estimate(GROUPS, {}, 20.0, LIMITS, 2, lambda group: True).seconds == pytest.approx(number * 10.0)
