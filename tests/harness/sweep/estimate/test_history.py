"""Which earlier runs an estimate may use."""

import json

import pytest
from planned import RUN, cells

from harness.records import Group, Limits, Record
from harness.sweep.environment import Gpu, describe
from harness.sweep.estimate import history
from harness.sweep.estimate.history import earlier_cells
from harness.sweep.plan import write_plan
from harness.sweep.store import Store


@pytest.fixture
def results(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path / "results"


def keep(folder, environment, seconds=3.0, suite="toy"):
    """Return a folder with a record of one cell."""
    cell = cells(RUN)[0]._replace(suite=suite)
    with Store(folder) as store:
        store.write_environment(environment)
        store.append(
            Record(cell, "ok", environment=environment.digest, limits=Limits(9.0), duration_s=seconds)
        )
        write_plan(folder, suite, [Group((cell,))])


def took(out, environment):
    return sorted((one.duration_s, one.same_host) for one in earlier_cells("toy", out, environment))


def test_every_folder_of_results_with_the_suite_is_used_and_each_once(results):
    here = describe()
    keep(results / "toy", here, 1.0)
    keep(results / "any name", here, 2.0)
    keep(results / "reference/toy_long", here, 4.0)
    keep(results / "elsewhere", here, 8.0, suite="other")
    (results / "stray").mkdir()
    assert took(results / "toy", here) == [(1.0, True), (2.0, True), (4.0, True)]
    keep(results.parent / "out", here, 16.0)
    assert took(results.parent / "out", here)[-1] == (16.0, True)


def test_the_kind_of_host_decides_and_neither_commit_nor_versions(results):
    here = describe()
    keep(results / "toy", here._replace(commit="other", versions={"torch": "1.0"}))
    assert took(results / "toy", here) == [(3.0, True)]
    assert took(results / "toy", here._replace(cpu="another CPU")) == [(3.0, False)]
    assert took(results / "toy", here._replace(cores=here.cores + 1)) == [(3.0, False)]


def test_a_host_with_other_gpus_predicts_nothing(results):
    here = describe()
    keep(results / "toy", here)
    assert took(results / "toy", here._replace(gpus=(Gpu("H100", 80 << 30),))) == []


def test_a_folder_that_cannot_be_read_is_left_out(results):
    here = describe()
    keep(results / "toy", here)
    keep(results / "old", here)
    record = json.loads((results / "old" / history.RECORDS).read_text())
    (results / "old" / history.RECORDS).write_text(json.dumps(record | {"schema": 0}) + "\n")
    keep(results / "no_environment", here)
    for file in (results / "no_environment").glob("environment-*.json"):
        file.unlink()
    assert took(results / "toy", here) == [(3.0, True)]
