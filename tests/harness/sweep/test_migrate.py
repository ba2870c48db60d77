"""Records of an earlier schema version take the present names, and no value changes."""

import json

import pytest

from harness.commands.migrate import main
from harness.config.run import load
from harness.records import SCHEMA
from harness.sweep.migrate import migrate, migrate_line, replan
from harness.sweep.plan import not_planned, read_plan
from harness.sweep.store import StoreError, read_records

OLD = {
    "schema": 1,
    "cell": {
        "id": "0123456789abcdef",
        "suite": "kernels",
        "workload": "step",
        "optimization": "baseline",
        "module": "baseline",
        "repeat": 0,
        "seed": 0,
        "config": {
            "workload": {"layers": 2, "hidden": 64, "heads": 4, "kv_heads": 2, "ffn": 176, "batch": 3},
            "settings": {"plain_steps": 2, "rank": 4},
        },
    },
    "status": "ok",
    "reason": "",
    "measurements": [["time", "s", "measured", "", [0.25, 0.125]]],
    "remarks": ["a note"],
    "conditions": {"batch": "3", "device": "cpu"},
    "environment": "e",
    "limits": {"timeout_s": 600.0, "memory_B": None},
    "started_at": "",
    "duration_s": 1.5,
}


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "records.jsonl").write_text(json.dumps(OLD) + "\n")
    return tmp_path


def test_an_earlier_record_takes_the_present_names(folder):
    assert migrate(folder) == 1
    (record,) = read_records(folder)
    assert record.cell.config["workload"] == {
        "num_hidden_layers": 2,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "intermediate_size": 176,
        "micro_batch_size": 3,
    }
    assert record.cell.config["settings"] == {"warmup_steps": 2, "rank": 4}
    assert record.conditions == {"micro_batch_size": "3", "device": "cpu"}
    assert record.notes == ("a note",)
    assert record.measurements[0].samples == (0.25, 0.125)
    assert record.cell.id == OLD["cell"]["id"]


def test_a_second_time_changes_nothing(folder):
    migrate(folder)
    first = (folder / "records.jsonl").read_bytes()
    assert migrate(folder) == 0
    assert (folder / "records.jsonl").read_bytes() == first


def test_the_reader_says_how_to_migrate(folder):
    with pytest.raises(StoreError, match=r"python -m harness migrate"):
        read_records(folder)


def test_an_unknown_version_is_refused_and_nothing_is_written(folder, capsys):
    text = json.dumps(OLD) + "\n" + json.dumps(OLD | {"schema": 99}) + "\n"
    (folder / "records.jsonl").write_text(text)
    assert main([str(folder)]) == 1
    error = capsys.readouterr().err
    assert "line 2: schema version 99 is unknown; the present one is 2, earlier ones: 1" in error
    assert (folder / "records.jsonl").read_text() == text


@pytest.mark.parametrize("end", ["", "\n"])
def test_an_incomplete_last_line_is_left_as_it_is(folder, caplog, end):
    torn = json.dumps(OLD)[:-9] + end
    with (folder / "records.jsonl").open("a") as file:
        file.write(torn)
    assert migrate(folder) == 1
    assert "the last line is no complete record" in caplog.text
    first, rest = (folder / "records.jsonl").read_text().split("\n", 1)
    assert json.loads(first)["schema"] == SCHEMA
    assert rest == torn
    assert [record.cell.id for record in read_records(folder)] == [OLD["cell"]["id"]]
    assert migrate(folder) == 0


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (json.dumps(OLD)[:-9].encode(), "line 1: Unterminated string"),
        (json.dumps(OLD | {"conditions": None}).encode(), "line 1: None in the place of an object"),
        (json.dumps(OLD | {"cell": None}).encode(), "line 1: not a record: TypeError"),
        (json.dumps({"schema": 1}).encode(), "line 1: not a record: KeyError('cell')"),
        (b'{"schema": "\xff"}', "it is not UTF-8 at byte 12"),
    ],
)
def test_what_is_no_record_is_refused_in_one_line_and_stays(folder, capsys, line, reason):
    content = line + b"\n" + (folder / "records.jsonl").read_bytes()
    (folder / "records.jsonl").write_bytes(content)
    assert main([str(folder)]) == 1
    error = capsys.readouterr().err
    assert reason in error
    assert error.count("\n") == 1
    assert (folder / "records.jsonl").read_bytes() == content


def test_a_present_line_is_left_as_it_is():
    line = migrate_line(json.dumps(OLD))
    assert json.loads(line)["schema"] == SCHEMA
    assert migrate_line(line) == line


def test_a_condition_is_renamed_within_a_version():
    cell = OLD["cell"] | {"suite": "memory"}
    line = json.dumps(
        json.loads(migrate_line(json.dumps(OLD))) | {"cell": cell, "conditions": {"held": "bf16"}}
    )
    renamed = migrate_line(line)
    assert json.loads(renamed) == json.loads(line) | {"conditions": {"state": "bf16"}}
    assert migrate_line(renamed) == renamed


def test_no_folder_is_a_mistake(capsys):
    assert main([]) == 2
    assert capsys.readouterr().out.startswith("python -m harness migrate FOLDER")


@pytest.mark.parametrize("given", [["nowhere"], ["--force"], ["."]])
def test_what_is_no_results_folder_is_a_mistake(given, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(given) == 2
    assert capsys.readouterr().err.startswith(f"harness migrate: {given[0]}: ")


@pytest.mark.parametrize("flag", ["-h", "--help"])
def test_help_is_the_usage(flag, capsys):
    assert main([flag]) == 0
    output = capsys.readouterr()
    assert output.out.startswith("python -m harness migrate FOLDER")
    assert not output.err


def cell_of(suite, name, workload, optimization="baseline", settings=None):
    cell = OLD["cell"] | {"id": name, "suite": suite, "optimization": optimization}
    return OLD | {
        "cell": cell | {"config": {"workload": workload, "settings": settings or {}}},
        "conditions": {},
    }


STEP = {"strategy": "ddp", "layers": 4, "nodes": 2, "parameters": None, "latency_s": 0.0}
FORMULA = {**STEP, "parameters": 7e9}


@pytest.fixture
def both(tmp_path):
    """Return a folder of a suite that measured some workloads and calculated others."""
    home = tmp_path / "interconnect"
    home.mkdir()
    records = [
        cell_of("interconnect", "measured", STEP, "gradient_accumulation", {"batches": 4}),
        cell_of("interconnect", "calculated", FORMULA, "gradient_accumulation", {"batches": 4}),
        cell_of("interconnect", "link", FORMULA, "link.3g"),
        cell_of("interconnect", "hook", FORMULA, "powersgd"),
    ]
    (home / "records.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    order = ["link", "measured", "hook", "calculated"]
    (home / "plan.json").write_text(json.dumps({"suite": "interconnect", "cells": order, "titles": {}}))
    (home / "environment-e.json").write_text("{}")
    return home


def test_a_suite_that_became_two_has_two_folders(both):
    assert migrate(both) == 4
    other = both.with_name("interconnect_formula")
    assert [one.cell.id for one in read_records(both)] == ["measured"]
    calculated, link = read_records(other)
    assert (calculated.cell.suite, calculated.cell.id, link.cell.id) == (
        "interconnect_formula",
        "calculated",
        "link",
    )
    assert calculated.cell.config["workload"] == {
        "num_hidden_layers": 4,
        "nodes": 2,
        "parameters": 7e9,
        "latency_s": 0.0,
    }
    assert calculated.cell.config["settings"] == {"gradient_accumulation_steps": 4}
    assert calculated.measurements[0].samples == (0.25, 0.125)
    (measured,) = read_records(both)
    assert measured.cell.config["workload"] == {"strategy": "ddp", "num_hidden_layers": 4, "nodes": 2}
    assert measured.cell.config["settings"] == {"batches": 4}
    plans = [json.loads((folder / "plan.json").read_text()) for folder in (both, other)]
    assert plans[0] == {"suite": "interconnect", "cells": ["measured"], "titles": {}}
    assert plans[1] == {"suite": "interconnect_formula", "cells": ["link", "calculated"], "titles": {}}
    assert (other / "environment-e.json").exists()


def test_a_folder_of_flows_keeps_every_variant(tmp_path):
    home = tmp_path / "mine"
    home.mkdir()
    shape = {"collective": "alltoall", "ranks_per_node": 1, "failed_uplinks": 0}
    records = [
        cell_of("fabric", "packets", {**shape, "emulated": True}, "e_ecmp.4_pairs"),
        cell_of("fabric", "flows", {**shape, "emulated": False}, "e_ecmp.4_pairs"),
    ]
    (home / "records.jsonl").write_text("".join(json.dumps(one) + "\n" for one in records))
    assert migrate(home) == 2
    (packets,), (flows,) = read_records(home), read_records(tmp_path / "mine_fabric_flows")
    assert packets.cell.config["workload"] == {"collective": "alltoall"}
    assert flows.cell.config["workload"] == shape


def test_a_folder_with_other_records_is_not_overwritten(both):
    other = both.with_name("interconnect_formula")
    other.mkdir()
    text = json.dumps(cell_of("interconnect", "mine", FORMULA)) + "\n"
    (other / "records.jsonl").write_text(text)
    before = (both / "records.jsonl").read_bytes()
    with pytest.raises(StoreError, match="holds other records"):
        migrate(both)
    assert (other / "records.jsonl").read_text() == text
    assert (both / "records.jsonl").read_bytes() == before


def test_a_migration_that_was_interrupted_can_be_repeated(both):
    before = (both / "records.jsonl").read_bytes()
    migrate(both)
    after = [
        (folder / "records.jsonl").read_bytes() for folder in (both, both.with_name("interconnect_formula"))
    ]
    (both / "records.jsonl").write_bytes(before)
    assert migrate(both) == 4
    assert after == [
        (folder / "records.jsonl").read_bytes() for folder in (both, both.with_name("interconnect_formula"))
    ]


def test_what_no_longer_applies_leaves_the_plan_and_keeps_its_record(tmp_path, capsys):
    """The kernels suite has no `sdpa` of softmax, and its eager softmax runs."""
    cells = {"0" * 16: ("baseline", "ok"), "1" * 16: ("sdpa", "unavailable"), "2" * 16: ("sdpa", "crashed")}
    lines = []
    for repeat, (cell, (variant, status)) in enumerate(cells.items()):
        where = {"id": cell, "workload": "softmax_small", "optimization": variant, "repeat": repeat}
        lines.append(json.dumps(OLD | {"cell": OLD["cell"] | where, "status": status}) + "\n")
    (tmp_path / "records.jsonl").write_text("".join(lines))
    plan = {"suite": "kernels", "titles": {"sdpa": "SDPA"}, "left_out": [], "cells": list(cells)}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    assert main([str(tmp_path)]) == 0
    assert "3 records rewritten" in capsys.readouterr().out
    assert [record.cell.id for record in read_records(tmp_path)] == list(cells)
    left = read_plan(tmp_path)
    assert (left.suite, left.cells, left.titles) == ("kernels", ("0" * 16, "2" * 16), {"sdpa": "SDPA"})
    (run,) = load(["suite=kernels", "repeats=3"])  # as many as the folder has
    assert list(left.left_out) == not_planned(run, gpu=False)
    assert replan(tmp_path) == 0
