"""The claims data: read whole, refused in one line where wrong, true to the paper and its arithmetic."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
import yaml

from harness.claims import CLAIMS, load_claims
from harness.records import UNITS
from harness.validation import ConfigError

GOOD = {
    "suite": "invented",
    "sources": {"somewhere": {"cite": "a place", "mark": "S"}},
    "workloads": {"w": {"num_hidden_layers": 2, "optimizer": "adamw"}},
    "claims": [
        {
            "id": "first",
            "quoted": "100 B",
            "quoted_by": "Table 0",
            "value": 100,
            "unit": "B",
            "relation": "about",
            "tolerance": 0.1,
            "conditions": {"device": "cuda"},
            "requires": {"device_memory_B": 80e9},
            "supports": "nothing",
            "source": "somewhere",
            "readings": [
                {"name": "r", "metric": "m", "workload": "w", "optimization": "o", "method": "y", "text": "T"}
            ],
        }
    ],
}  # fmt: skip

Edit = Callable[[dict[str, Any], dict[str, Any]], object]


def load(folder: Path, edit: Edit | None = None) -> Any:
    data = yaml.safe_load(yaml.safe_dump(GOOD))
    if edit:
        edit(data, data["claims"][0])
    (folder / "invented.yaml").write_text(yaml.safe_dump(data))
    return load_claims("invented", folder)


def test_a_good_file_is_read(tmp_path: Path) -> None:
    (claim,) = load(tmp_path)
    assert (claim.value, claim.unit, claim.source, claim.source_mark) == (100.0, "B", "a place", "S")
    assert claim.readings[0].per == ""
    assert claim.readings[0].requires == {
        "num_hidden_layers": 2,
        "optimizer": "adamw",
        "device_memory_B": 80e9,
    }
    with pytest.raises(FrozenInstanceError):
        claim.value = 1.0


def test_a_range_and_a_ratio_are_read(tmp_path: Path) -> None:
    def edit(_: dict[str, Any], claim: dict[str, Any]) -> None:
        claim.update(unit="1", relation="within", value=1.3, upper=2)
        claim["readings"][0]["against"] = "baseline"

    (claim,) = load(tmp_path, edit)
    assert (claim.relation, claim.value, claim.upper) == ("within", 1.3, 2.0)
    assert claim.readings[0].against == "baseline"


RISING = {"relation": "rising", "unit": "1", "value": 1.0}


def ordered(claim: dict[str, Any], order: Any, **reading: Any) -> None:
    """Turn the good claim into one of an order."""
    claim.update(RISING)
    del claim["tolerance"], claim["readings"][0]["optimization"]
    claim["readings"][0].update(order=order, **reading)


def test_an_order_of_arms_is_read_and_needs_no_tolerance(tmp_path: Path) -> None:
    (claim,) = load(tmp_path, lambda _, c: ordered(c, ["low", "moderate", "high"]))
    assert (claim.relation, claim.value, claim.unit, claim.tolerance) == ("rising", 1.0, "1", 0.0)
    assert claim.readings[0].order == claim.readings[0].variants == ("low", "moderate", "high")
    assert claim.readings[0].requires == {
        "num_hidden_layers": 2,
        "optimizer": "adamw",
        "device_memory_B": 80e9,
    }
    (claim,) = load(tmp_path)
    assert (claim.readings[0].order, claim.readings[0].variants) == ((), ("o",))


def test_an_order_may_ask_for_more_than_merely_more(tmp_path: Path) -> None:
    def edit(_: dict[str, Any], claim: dict[str, Any]) -> None:
        ordered(claim, ["a", "b"])
        claim.update(value=1.25, tolerance=0.2)

    (claim,) = load(tmp_path, edit)
    assert (claim.value, claim.tolerance) == (1.25, 0.2)


def test_a_suite_without_claims_has_none(tmp_path: Path) -> None:
    assert load_claims("invented", tmp_path) == ()


@pytest.mark.parametrize(
    ("edit", "told"),
    [
        (lambda d, c: c.update(vaule=1), ["claims[0] (first).vaule", "did you mean value"]),
        (lambda d, c: c.pop("value"), ["claims[0] (first).value", "missing"]),
        (lambda d, c: c.update(value="many"), ["(first).value"]),
        (lambda d, c: c.update(value=0), ["(first).value", "above 0"]),
        (lambda d, c: c.update(unit="GB"), ["(first).unit", "B/s"]),
        (lambda d, c: c.update(relation="around"), ["(first).relation", "at_least"]),
        (lambda d, c: c.update(tolerance=-0.1), ["(first).tolerance"]),
        (lambda d, c: c.update(source="elsewhere"), ["(first).source", "somewhere"]),
        (lambda d, c: c.update(readings=[]), ["(first).readings", "none"]),
        (lambda d, c: c["readings"][0].pop("metric"), ["readings[0].metric", "missing"]),
        (lambda d, c: c["readings"].append(c["readings"][0]), ["readings", "'r' stands twice"]),
        (lambda d, c: c["readings"].append("a word"), ["readings[1]", "expected KEY: VALUE"]),
        (lambda d, c: d["claims"].append(c), ["'first' stands twice"]),
        (lambda d, c: d["claims"].append(7), ["claims[1]", "expected KEY: VALUE"]),
        (lambda d, c: d["sources"]["somewhere"].update(mark="U"), ["somewhere.mark"]),
        (lambda d, c: d.pop("workloads"), ["invented.yaml.workloads", "missing"]),
        (lambda d, c: d["workloads"].update(w=7), ["workloads.w", "expected KEY: VALUE"]),
        (lambda d, c: d["workloads"].update(w={}), ["workloads.w", "no field"]),
        (
            lambda d, c: d["workloads"]["w"].update(num_hidden_layers=[2]),
            ["workloads.w.num_hidden_layers", "[2]", "a number"],
        ),
        (
            lambda d, c: d["workloads"]["w"].update(num_hidden_layers=None),
            ["workloads.w.num_hidden_layers", "None"],
        ),
        (lambda d, c: d["workloads"].update(v=d["workloads"].pop("w")), ["readings[0].workload", "'w'", "v"]),
        (lambda d, c: c.update(requires=["80 GB"]), ["(first).requires"]),
        (
            lambda d, c: c.update(requires={"num_hidden_layers": 3}),
            ["readings[0]", "num_hidden_layers", "workloads.w"],
        ),
        (lambda d, c: c.update(upper=200), ["(first).upper", "200", "within alone"]),
        (lambda d, c: c.update(relation="within"), ["(first).upper", "missing", "above value, 100"]),
        (lambda d, c: c.update(relation="within", upper=100), ["(first).upper", "100", "above value"]),
        (lambda d, c: c["readings"][0].update(against="b"), ["(first).unit", "B", "'r' is a ratio"]),
        (lambda d, c: c["readings"][0].update(against="b", per="p"), ["readings[0]", "per and against"]),
        (
            lambda d, c: (c.update(unit="1"), c["readings"][0].update(against="b", at="least")),
            ["readings[0]", "at least and against"],
        ),
        (lambda d, c: c["readings"][0].update(at="worst"), ["readings[0].at", "worst", "least", "most"]),
        (lambda d, c: c.pop("tolerance"), ["(first).tolerance", "missing"]),
        (lambda d, c: c["readings"][0].pop("optimization"), ["readings[0].optimization", "missing"]),
        (lambda d, c: ordered(c, ["a"]), ["readings[0].order", "['a']", "at least two variants"]),
        (lambda d, c: ordered(c, []), ["readings[0].order", "at least two variants"]),
        (lambda d, c: ordered(c, "ab"), ["readings[0].order", "'ab'", "a list"]),
        (lambda d, c: ordered(c, ["a", 2]), ["readings[0].order", "names of at least two variants"]),
        (lambda d, c: ordered(c, ["a", "b", "a"]), ["readings[0].order", "'a' stands twice"]),
        (lambda d, c: ordered(c, ["a", "b"], optimization="a"), ["readings[0]", "order and optimization"]),
        (lambda d, c: ordered(c, ["a", "b"], against="c"), ["readings[0]", "order and against"]),
        (lambda d, c: ordered(c, ["a", "b"], per="p"), ["readings[0]", "order and per are both given"]),
        (lambda d, c: ordered(c, None), ["readings[0].order", "missing"]),
        (lambda d, c: c.update(RISING, tolerance=0), ["readings[0].order", "missing", "relation rising"]),
        (
            lambda d, c: c["readings"][0].update(order=["a", "b"]),
            ["readings[0].order", "relation rising alone"],
        ),
        (lambda d, c: [ordered(c, ["a", "b"]), c.update(unit="B")], ["(first).unit", "B", "expected 1"]),
        (lambda d, c: [ordered(c, ["a", "b"]), c.update(value=0.9)], ["(first).value", "0.9", "no rise"]),
        (
            lambda d, c: [ordered(c, ["a", "b"]), c.update(tolerance=0.1)],
            ["(first).value", "1 with tolerance 0.1", "no rise"],
        ),
        (lambda d, c: [ordered(c, ["a", "b"]), c.update(upper=2)], ["(first).upper", "within alone"]),
        (lambda d, c: d.update(suite="other"), ["invented.yaml.suite", "'other'"]),
        (lambda d, c: d.update(claim=[]), ["invented.yaml.claim", "claims"]),
    ],
)
def test_a_mistake_is_one_line_that_names_its_place(edit: Edit, told: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as error:
        load(tmp_path, edit)
    text = str(error.value)
    assert "\n" not in text
    assert text.startswith("invented.yaml")
    for part in told:
        assert part in text


@pytest.mark.parametrize(
    "text", ["claims: [", "- a list", "\x00", "!!python/object/apply:os.system ['true']"]
)
def test_a_file_that_is_no_claims_file_is_refused_in_one_line(text: str, tmp_path: Path) -> None:
    (tmp_path / "invented.yaml").write_text(text)
    with pytest.raises(ConfigError) as error:
        load_claims("invented", tmp_path)
    assert "\n" not in str(error.value)


SUITES = sorted(path.stem for path in CLAIMS.glob("*.yaml"))


@pytest.mark.parametrize("suite", SUITES)
def test_every_claim_says_what_its_source_supports(suite: str) -> None:
    for claim in load_claims(suite):
        assert claim.supports
        assert claim.source
        assert claim.quoted
        assert claim.unit in UNITS
        assert claim.source_mark != "U"
        assert claim.readings


PAPER_TABLE_I = {
    # workload: parameters, GB, GPUs of 80 GB; copied from the paper's page, not from conf/
    "llama_1b": (1e9, 40, 1),
    "llama_7b": (7e9, 280, 4),
    "llama_13b": (13e9, 520, 7),
    "llama_70b": (70e9, 2800, 35),
    "gpt3_175b": (175e9, 7000, 88),
}


def test_table_1_is_the_papers_and_its_own_arithmetic() -> None:
    claims = {claim.id: claim for claim in load_claims("memory")}
    for workload, (parameters, gigabytes, gpus) in PAPER_TABLE_I.items():
        memory = claims[f"table_1_{workload}_memory"]
        count = claims[f"table_1_{workload}_gpus"]
        assert memory.value == gigabytes * 1e9 == 40 * parameters
        assert count.value == gpus == math.ceil(gigabytes / 80)
        assert count.tolerance == 0
        assert {reading.workload for reading in (*memory.readings, *count.readings)} == {workload}


def test_both_readings_of_checkpointing_are_tried() -> None:
    for claim in load_claims("memory"):
        variants = {variant for reading in claim.readings for variant in reading.variants}
        assert "mixed_checkpointed" in variants, claim.id
        assert variants & {"mixed_precision.autocast", "mixed_flash"}, claim.id


def test_a_claim_about_a_gpu_states_its_device() -> None:
    assert all(claim.conditions.get("device") == "cuda" for claim in load_claims("memory"))


def test_a_count_of_gpus_says_of_which_memory() -> None:
    counts = ("gpus", "ranks_needed", "ranks_needed_power_of_two")
    for claim in load_claims("memory"):
        for reading in claim.readings:
            due = {"device_memory_B": 80e9} if reading.metric in counts else {}
            found = {name: v for name, v in reading.requires.items() if name == "device_memory_B"}
            assert found == due, (claim.id, reading.name)


def test_every_reading_names_a_workload_and_an_arm_that_the_suite_has() -> None:
    conf = CLAIMS.parent / "suite"
    suite = yaml.safe_load((conf / "memory.yaml").read_text())
    variants = set()
    for path in (conf / "memory").glob("*.yaml"):
        labels = (yaml.safe_load(path.read_text()) or {}).get("variants") or {}
        variants |= {f"{path.stem}.{label}" for label in labels} or {path.stem}
    for claim in load_claims("memory"):
        for reading in claim.readings:
            assert reading.workload in suite["workloads"], reading
            assert set(reading.variants) <= variants, reading
