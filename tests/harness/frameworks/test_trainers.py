"""Trainers' files: their versions by keys, TRL's trainers, several files of one run, and post-training."""

import json
from pathlib import Path

import pytest
import yaml
from refusals import refused

from harness.ask.words import FIT, question_from, words_of
from harness.frameworks.read import read_own_files
from harness.question import Adapters

CASES = yaml.safe_load((Path(__file__).parents[2] / "data" / "trainers.yaml").read_text())


def files_of(texts, folder):
    """Write the files of a case; a mapping is JSON or YAML by the file's suffix."""
    for name, content in texts.items():
        text = json.dumps(content) if name.endswith(".json") else yaml.safe_dump(content)
        (folder / name).write_text(content if isinstance(content, str) else text)


def read_values_of(question, expected):
    """Return the values of the fields that are expected, adapters as a mapping of those that are given."""
    values = {field: getattr(question, field) for field in expected}
    return {field: list(value) if isinstance(value, tuple) else value for field, value in values.items()}


@pytest.mark.parametrize("case", CASES["read"])
def test_a_trainers_files_are_read_as_what_they_are(case, tmp_path):
    one = CASES["read"][case]
    files_of(one["files"], tmp_path)
    question = read_own_files([str(tmp_path / name) for name in one.get("config", one["files"])])
    expected = dict(one["expect"])
    if expected.get("adapters"):
        targets = tuple(expected["adapters"].pop("targets", ()))
        expected["adapters"] = Adapters(**expected["adapters"], targets=targets)
    assert read_values_of(question, expected) == expected
    left_out = {key.key: key.memory for key in question.keys if key.status == "not modelled"}
    assert left_out == one.get("left_out", {})
    assert {key.key for key in question.keys if key.means.startswith("no key of")} == set()
    assumed = [name for name, origin in question.origins.items() if origin.kind == "assumption"]
    assert set(assumed) >= set(one.get("assumed", ()))


@pytest.mark.parametrize("case", CASES["refused"])
def test_files_that_do_not_go_together_are_refused_by_key(case, tmp_path):
    one = CASES["refused"][case]
    files_of(one["files"], tmp_path)
    paths = [str(tmp_path / name) for name in one.get("config", one["files"])]
    refused(lambda: read_own_files(paths), one["says"])


def test_several_files_are_asked_as_a_list(tmp_path):
    files_of(CASES["read"]["a trainer's file and a ds_config"]["files"], tmp_path)
    files = ",".join(str(tmp_path / name) for name in ("train.yaml", "ds.json"))
    question = question_from(words_of([f"config=[{files}]", "devices=8", "seq_len=512"], FIT))
    assert (question.sharing, question.zero, question.seq_len) == ("zero", 3, 512)
