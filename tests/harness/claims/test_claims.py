"""The claims data: read whole, refused where wrong, true to the paper, gains in the direction of words."""

import math
from dataclasses import replace

import pytest
import yaml
from refusals import mistaken
from synthetic import made

from harness.claims.judge import judge
from harness.claims.load import load_claims
from harness.config import run

GOOD = """
suite: invented
claims:
  - {id: first, quoted: 100 B, quoted_by: Table 0, value: 100, unit: B, relation: about, tolerance: 0.1,
     conditions: {device: cuda}, requires: {device_memory_B: 8.0e+10}, source: somewhere/first,
     interpretations: [{name: r, metric: m, method: y, workload: w_small, variant: o, text: ""}]}
"""
SOURCES = """
somewhere: {cite: a place, provenance: stated, says: {first: {text: It is so.}}}
"""
SUITE = """
workloads:
  w_small:
    {num_hidden_layers: 2, optimizer: adamw, learning_rate: 1.0e9, device_memory_B: "${hardware.memory_B}",
     source: here}
  w_large: {num_hidden_layers: 4, optimizer: adamw, device_memory_B: "${hardware.memory_B}", source: here}
  other: {num_hidden_layers: 6, optimizer: adamw, device_memory_B: "${hardware.memory_B}", source: here}
"""


def load(conf, edit=lambda data, claim: None):
    data = yaml.safe_load(GOOD)
    edit(data, data["claims"][0])
    for folder in ("claims", "suite/invented", "report"):
        (conf / folder).mkdir(parents=True, exist_ok=True)
    (conf / "claims/invented.yaml").write_text(yaml.safe_dump(data))
    (conf / "sources.yaml").write_text(SOURCES)
    (conf / "suite/invented.yaml").write_text(SUITE)
    (conf / "suite/invented/o.yaml").write_text("title: The other\n")
    (conf / "suite/invented/p.yaml").write_text("variants: {x: {title: P by x}, y: {}}\n")
    (conf / "report/invented.yaml").write_text("names: {workload: {w_small: Small}}\n")
    return load_claims("invented", conf, "toy.toy_suites")


def test_a_claim_is_about_the_workload_as_the_suite_declares_it(tmp_path):
    """Nothing is copied: what the hardware gives and where it was taken from is left out."""
    (claim,) = load(tmp_path)
    assert (claim.value, claim.unit, claim.source, claim.provenance) == (100.0, "B", "a place", "stated")
    assert (claim.verbatim, claim.misquoted, claim.source_says) == (True, "", "It is so.")
    (only,) = claim.interpretations
    shape = {"num_hidden_layers": 2, "optimizer": "adamw", "device_memory_B": 80e9}
    assert only.requires == {**shape, "learning_rate": 1e9}
    assert only.defaults == {"bias": False, "ranks": 2}
    assert (only.divide_by, only.order, only.variants) == ("", (), ("o",))
    (claim,) = load(tmp_path, lambda d, c: d.update(ignore_fields=["ranks", "learning_rate"]))
    (only,) = claim.interpretations
    assert (only.requires, only.defaults) == (shape, {"bias": False})
    assert load_claims("without", tmp_path) == ()


INCREASING = {"relation": "increasing", "unit": "1", "value": 1.0}


def ranged(_, claim, ends=(1.3, 2)):
    for name in ("relation", "value", "tolerance"):
        del claim[name]
    claim.update(unit="1", range=list(ends) if isinstance(ends, tuple) else ends)
    claim["interpretations"][0]["relative_to"] = "baseline"


def ordered(claim, order, **more):
    claim.update(INCREASING)
    del claim["tolerance"], claim["interpretations"][0]["variant"]
    claim["interpretations"][0].update(order=order, **more)


def first(claim):
    return claim["interpretations"][0]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda d, c: c.update(vaule=1), ["claims[0] (first).vaule", "did you mean value"]),
        (lambda d, c: c.update(value=0), ["(first).value", "above 0"]),
        (lambda d, c: c.update(source="somewhere/frist"), ["(first).source", "mean somewhere/first"]),
        (lambda d, c: c["interpretations"].append(first(c)), ["interpretations", "'r' is given twice"]),
        (lambda d, c: first(c).update(workload="w_smal"), ["interpretations[0].workload", "mean w_small"]),
        (lambda d, c: ranged(d, c, (2, 1.3)), ["(first).range", "[LOW, HIGH]"]),
        (lambda d, c: first(c).update(relative_to="b"), ["(first).unit", "B", "'r' is a ratio"]),
        (lambda d, c: c.pop("tolerance"), ["(first).tolerance", "missing"]),
        (lambda d, c: first(c).pop("variant"), ["interpretations[0]", "variant, or variants"]),
        (lambda d, c: ordered(c, ["a"]), ["interpretations[0].order", "['a']", "at least two variants"]),
        (lambda d, c: [ordered(c, ["a", "b"]), c.update(value=0.9)], ["(first).value", "0.9", "no increase"]),
        (lambda d, c: d.update(suite="other"), ["invented.yaml.suite", "'other'"]),
    ],
)
def test_a_mistake_is_one_line_that_names_its_place(edit, words, tmp_path):
    text = mistaken(lambda: load(tmp_path, edit), "invented.yaml")
    assert text.startswith("invented.yaml")
    assert [part for part in words if part not in text] == []


PAPER_TABLE_I = {
    # workload: parameters, GB, GPUs of 80 GB; copied from the paper's page, not from conf/
    "llama_1b": (1e9, 40, 1),
    "llama_7b": (7e9, 280, 4),
    "llama_13b": (13e9, 520, 7),
    "llama_70b": (70e9, 2800, 35),
    "gpt3_175b": (175e9, 7000, 88),
}


def test_table_1_is_the_papers_and_its_own_arithmetic():
    claims = {claim.id: claim for claim in load_claims("memory")}
    for workload, (parameters, gigabytes, gpus) in PAPER_TABLE_I.items():
        memory = claims[f"table_1_{workload}_memory"]
        count = claims[f"table_1_{workload}_gpus"]
        assert memory.value == gigabytes * 1e9 == 40 * parameters
        assert count.value == gpus == math.ceil(gigabytes / 80)
        assert count.tolerance == memory.tolerance
        assert {one.workload for one in (*memory.interpretations, *count.interpretations)} == {workload}


UNITS = {"peak_memory": "B", "memory": "B", "sm_clock": "Hz", "throughput": "token/s"}

CASES = [
    ("fsdp_versions", "lower_peak", "baseline", "fsdp2", 0.975, "exceeds"),  # a higher peak is no lower one
    ("fsdp_versions", "higher_clocks", "baseline", "fsdp2", 1.2, "falls short"),
    ("dataloader", "memory", "baseline", "disaggregated", 1 / 13.5, "falls short"),
    ("dataloader", "throughput", "baseline", "disaggregated_balanced", 4.5, "falls short"),
    ("dataloader", "async_loading", "synchronous", "baseline", 1.35, "falls short"),
]


def outcomes(suite, claim_id, before, after, factor):
    """Return the outcomes where each sample of the variant `after` is `factor` times that of `before`."""
    (claim,) = [one for one in load_claims(suite) if one.id == claim_id]
    compared = [one for one in claim.interpretations if {one.variant, one.relative_to} == {before, after}]
    workloads = run.load([f"suite={suite}"])[0].workloads
    records = {}
    for one in compared:
        for variant, value in ((before, 100.0), (after, 100.0 * factor)):
            for repeat in range(3):
                samples = tuple(value * drift for drift in (1.0, 1.1, 0.9))
                metrics = {(one.metric, one.method): (UNITS[one.metric], "measured", samples)}
                fields = workloads[one.workload]
                record = made(one.workload, variant, metrics, repeat=repeat, fields=fields, suite=suite)
                records[one.workload, variant, repeat, one.metric, one.method] = record
    judged = judge([replace(claim, interpretations=tuple(compared))], list(records.values()))
    assert judged
    return {verdict.outcome for verdict in judged}


@pytest.mark.parametrize(("suite", "claim_id", "before", "after", "factor", "otherwise"), CASES)
def test_a_claimed_gain_holds_and_its_inverse_does_not(suite, claim_id, before, after, factor, otherwise):
    assert outcomes(suite, claim_id, before, after, factor) == {"holds"}
    assert outcomes(suite, claim_id, before, after, 1 / factor) == {otherwise}
