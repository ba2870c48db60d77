"""Published rows: what is selected and summed up, and which rows are refused."""

import json
import re

import pytest
from omegaconf import OmegaConf
from refusals import mistaken

from harness.claims.published import CONF, rows, summary
from harness.config.validation import ConfigError

ADDRESS = {"repository": "owner/name", "commit": "0123abcd", "path": "README.md"}


def written(tmp_path, *lines):
    folder = tmp_path / "published"
    folder.mkdir()
    text = "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
    (folder / "made_up.jsonl").write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def conf(tmp_path):
    return written(
        tmp_path,
        {"value": 1.5, **ADDRESS, "task": "language", "tokens": 2048, "batch_from": 4, "batch_to": 4},
        {"value": 2.5, **ADDRESS, "task": "vision", "batch_from": 8, "batch_to": 16},
        {"value": 3.0, "cite": "Them", "task": "language", "tokens": 8192, "time_from": 9, "time_to": 3.001},
    )


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ({}, [1.5, 2.5, 3.0]),
        ({"task": "language"}, [1.5, 3.0]),
        ({"task": ["vision", "speech"]}, [2.5]),
        ({"tokens": {"at_least": 1024, "below": 8192}}, [1.5]),
        ({"batch_to": {"not_above": "batch_from"}}, [1.5]),
        ({"tokens": None}, [2.5]),
        ({"phase": None, "scope": "step"}, [1.5, 2.5, 3.0]),
    ],
)
def test_a_selection(conf, where, expected):
    assert [row.value for row in rows("made_up", where, conf)] == expected


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"value": 0, **ADDRESS}, "value=0"),
        ('{"value": NaN, "cite": "x"}', "value=nan"),
        ({"value": 1.5, **ADDRESS, "gpu": 8}, "gpu: no such name"),
        ({"value": 1.5, **ADDRESS, "task": "chess"}, "task='chess'"),
        ("", "no JSON"),
    ],
)
def test_a_bad_row_is_refused_in_one_line_with_its_number(tmp_path, row, words):
    conf = written(tmp_path, {"value": 1.5, "cite": "Good"}, row)
    assert mistaken(lambda: rows("made_up", {}, conf), words).startswith("made_up.jsonl:2")
    mistaken(lambda: rows("absent", {}, conf), "absent.jsonl: cannot be read")


def test_quantiles_lie_between_neighbours():
    found = summary([4.0, 1.0, 2.0, 3.0])
    assert (found.n, found.least, found.most) == (4, 1.0, 4.0)
    assert found.quantiles == pytest.approx({10: 1.3, 25: 1.75, 50: 2.5, 75: 3.25, 90: 3.7})
    assert summary([2.0]).quantiles == {10: 2.0, 25: 2.0, 50: 2.0, 75: 2.0, 90: 2.0}


FILES = sorted(path.stem for path in (CONF / "published").glob("*.jsonl"))


PAIRS = (("throughput_to", "throughput_from"), ("time_from", "time_to"), ("tflops_per_gpu", "peak_tflops"))
"""Fields whose ratio the value is, where both are published."""

OUTCOMES = ("value", "published_ratio", "tflops_per_gpu", "best", *PAIRS[0], *PAIRS[1])
"""Fields that say what came out. The others say of what: no two rows of a file agree in all of those."""


@pytest.mark.parametrize("name", FILES)
def test_each_row_has_its_source_and_the_ratio_of_its_pair_and_none_is_there_twice(name):
    pairs = [field for pair in PAIRS[:2] for field in pair]
    whose = ("framework", "model", "device", "from", "to", "gpus", "tokens", "batch_from", "batch_to", *pairs)
    seen = {}
    for row in rows(name, {}):
        fields, at = row.fields, f"{name}:{row.line}"
        address = [key for key in ("cite", "repository", "commit", "path") if key in fields]
        assert address in (["cite"], ["repository", "commit", "path"]), at
        assert re.fullmatch("[0-9a-f]{7,40}", fields.get("commit", "0" * 7)), at
        assert "" not in fields.values(), at
        for above, below in PAIRS:
            assert (above in fields) == (below in fields) or below == "peak_tflops", at
            if {above, below} <= fields.keys():  # values have at least three decimals
                assert row.value == pytest.approx(fields[above] / fields[below], rel=0.002), at
        keys = [json.dumps({k: v for k, v in fields.items() if k not in OUTCOMES}, sort_keys=True)]
        keys += [str([fields.get(key) for key in whose])] * any(key in fields for key in pairs)
        for key in keys:
            assert seen.setdefault(key, at) == at


def test_each_derived_mfu_is_over_the_peak_of_its_device():
    """`peak_tflops` is that of conf/hardware, twice that in FP8; `best` marks the largest of its group."""
    every = rows("mfu", {})
    classes = {"H100", "H200", "B200", "B300", "GB200", "A100-80GB", "A100-40GB"}
    assert {row.fields["device_class"] for row in every} == classes
    for row in rows("mfu", {"provenance": "derived"}):
        named = row.fields["device_class"].lower().replace("-", "_")
        hardware = OmegaConf.load(CONF / f"hardware/{'h100_80gb' if named == 'h100' else named}.yaml")
        peak = hardware.matmul_FLOP_per_s.bf16 * {"bf16": 1, "fp8": 2}[row.fields["precision"]]
        assert row.fields["peak_tflops"] == pytest.approx(peak / 1e12)
        assert row.value == pytest.approx(row.fields["tflops_per_gpu"] / row.fields["peak_tflops"], rel=1e-4)
    groups = {}
    for row in every:
        alike = (row.fields[key] for key in ("model", "device_class", "precision", "gpus", "tokens"))
        groups.setdefault((row.source, *alike), []).append(row)
    for group in groups.values():
        (best,) = (row for row in group if row.fields.get("best"))
        assert best.value == max(row.value for row in group)


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ({"taks": "language"}, "taks"),
        ({"task": "language", **dict.fromkeys("zyxwvu", 1)}, "z: no such name"),  # the first, in order
        ({"task": "langauge"}, r'no row has {"task": "langauge"}'),
        ({"tokens": {"least": 4096}}, "at_least"),
    ],
)
def test_a_bad_selection_is_refused(conf, where, words):
    with pytest.raises(ConfigError, match=words):
        rows("made_up", where, conf)
