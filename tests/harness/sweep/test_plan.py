"""Config to cells: the matrix, its groups, and what a cell's identity depends on."""

from dataclasses import replace
from pathlib import Path

import pytest
from planned import RUN, cells

from harness.config.validation import ConfigError
from harness.records import Limits, Sampling
from harness.sweep import sweep
from harness.sweep.plan import plan
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


def test_a_workload_may_say_how_many_rounds():
    timed = replace(RUN, sampling=Sampling(rounds=3), rounds_field="size")
    groups = plan(timed, "env", lambda variant: "code")
    sampled = [(group.sampling.rounds, group.sampling.budget_s) for group in groups]
    assert sampled == [(1, 0), (1, 0), (2, 0), (2, 0)]


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
