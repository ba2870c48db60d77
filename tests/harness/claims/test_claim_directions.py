"""A claim's ratio is the one that its words name: a gain as large as claimed holds, its inverse does not."""

from dataclasses import replace

import pytest
from synthetic import made

from harness.claims.judge import judge
from harness.claims.load import load_claims
from harness.config.run import load

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
    workloads = load([f"suite={suite}"])[0].workloads
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
