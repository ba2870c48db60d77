"""Records of an earlier schema version take the present names, and no value changes."""

import json

import pytest

from harness.migrate import main, migrate, migrate_line
from harness.records import SCHEMA
from harness.store import StoreError, read_records

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
    with pytest.raises(StoreError, match=r"python -m harness\.migrate"):
        read_records(folder)


def test_an_unknown_version_is_refused_and_nothing_is_written(folder, capsys):
    text = json.dumps(OLD) + "\n" + json.dumps(OLD | {"schema": 99}) + "\n"
    (folder / "records.jsonl").write_text(text)
    assert main([str(folder)]) == 1
    assert "line 2: schema version 99 is unknown" in capsys.readouterr().err
    assert (folder / "records.jsonl").read_text() == text


def test_a_present_line_is_left_as_it_is():
    line = migrate_line(json.dumps(OLD))
    assert json.loads(line)["schema"] == SCHEMA
    assert migrate_line(line) == line


def test_no_folder_is_a_mistake(capsys):
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err
