"""Ends of intervals from public runs, by hand, and the table that a question's interval is taken from."""

import json

import pytest
import yaml

from harness.ask import certainty
from harness.question import Adapters, FieldOrigin, question_of
from suites.published.ends import HELD, RunRatio, blended, ends_of, main, narrowest
from suites.training.step_time.prediction import FEWEST_RUNS
from suites.training.step_time.published.rows import published_runs


def test_a_source_of_many_runs_counts_as_the_root_of_twenty():
    """One long table weighs √20 = 4.47, nine others 1 each: 0.33 of all."""
    ratios = [RunRatio("long", 1.0)] * 200 + [RunRatio(str(one), 2.0) for one in range(9)]
    assert blended({"a": ratios}, "a").quantiles((0.33, 0.34)) == pytest.approx([1.0, 2.0])


def test_other_kinds_count_as_six_sources():
    """Four sources of the kind and six of another: 0.4 of all is the kind's."""
    own = [RunRatio(f"a {one}", 1.0) for one in range(4)]
    other = [RunRatio(f"b {one}", 2.0) for one in range(4)]
    both = blended({"a": own, "b": other}, "a")
    assert both.quantiles((0.39, 0.41)) == pytest.approx([1.0, 2.0])
    assert blended({"a": own, "b": other}, "a", "a 0").quantiles((0.32, 0.34)) == pytest.approx([1.0, 2.0])


def test_what_is_held_is_of_the_other_sources():
    near = [RunRatio(source, value) for source in "abc" for value in (0.9, 1.0, 1.1)]
    assert ends_of({"a": near}, "a", (0.0, 1.0))["held"] == 1.0
    assert ends_of({"a": [*near, RunRatio("d", 5.0)]}, "a", (0.0, 1.0))["held"] == 0.9


def test_ends_are_the_narrowest_that_hold_enough():
    """What one run in forty does is left out where the other sources show it, too."""
    alike = [RunRatio(source, 1 + index / 1000) for source in "abcdef" for index in range(39)]
    far = [RunRatio(source, 9.0) for source in "abcdef"]
    found = narrowest({"a": alike + far}, "a")
    assert found["held"] >= HELD
    assert found["high"] < 1.1
    some = [RunRatio(source, 4.0) for source in "abcdef" for _ in range(3)]  # three in forty-two
    assert narrowest({"a": alike + some}, "a")["high"] < 1.1
    assert ends_of({"a": alike + some}, "a", (0.05, 0.95))["high"] > 3
    unlike = [RunRatio(source, 2.0**index) for index, source in enumerate("abcdef")]
    assert narrowest({"a": unlike}, "a")["held"] < HELD


def test_the_command_prints_the_table_that_is_loaded(tmp_path, capsys):
    """Every peak is answered with half of what was published: each end is 2."""
    lines = []
    for run in published_runs():
        half = (run.outcome.peak_GB or 1) / 2
        peaks = {f"peak_{kind}_GB": half for kind in ("allocated", "reserved")}
        lines.append(json.dumps({"id": run.id, "engine": "account", "asked_as": "experts", **peaks}))
    (tmp_path / "answers").write_text("\n".join(lines[: len(lines) // 2]))  # silence is no answer
    main([f"bytes={tmp_path / 'answers'}"])
    found = yaml.safe_load(capsys.readouterr().out)
    assert found.keys() == {"account"}
    for of in found["account"].values():
        assert (of["experts"]["low"], of["experts"]["high"], of["experts"]["held"]) == (2.0, 2.0, 1.0)
        assert of["experts"]["n"] >= FEWEST_RUNS


OF_FOUR_BITS = Adapters(rank=8, base="nf4")
LISTED = {"techniques": FieldOrigin("command", "techniques")}


@pytest.mark.parametrize(
    ("fields", "kind", "described"),
    [
        ({"framework": "TRL", "adapters": Adapters(rank=8)}, "adapters", True),
        ({"framework": "a page's", "adapters": OF_FOUR_BITS}, "adapters on a quantized base", True),
        ({"format": "megatron", "framework": "core 0.12", "devices": 8}, "several devices", False),
        ({"config": {"num_experts": 8}, "framework": "torchtitan"}, "experts", True),
        ({"devices": 1}, "one device", False),
        ({"framework": "TRL", "origins": LISTED}, "one device", False),
    ],
    ids=str,
)
def test_a_question_is_of_one_kind(fields, kind, described):
    question = question_of(**fields)
    assert certainty.kind_of(question) == kind
    assert certainty.is_described(question) is described
