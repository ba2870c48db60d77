"""What a claim's conditions and shape make of a figure: as stated, elsewhere, or none of this claim's."""

from __future__ import annotations

from dataclasses import replace

import pytest
from judged import figure, one
from synthetic import claim, conf_workloads, made

from harness.claims.judge import judge
from harness.claims.load import load_claims
from harness.claims.model import Difference

GPU = {"device": "cuda", "optimizer": "adam | adamw"}


def test_as_stated_needs_every_condition_met() -> None:
    held = claim(conditions=GPU)
    stated = one(held, figure(100.0, conditions={"device": "cuda", "optimizer": "adamw", "batch": "4"}))
    assert (stated.where, stated.differs) == ("as stated", ())


@pytest.mark.parametrize(
    ("origin", "conditions", "differs"),
    [
        ("measured", {"device": "cpu", "optimizer": "adam"}, Difference("device", "cpu", "cuda")),
        ("measured", {"optimizer": "adam"}, Difference("device", "", "cuda")),
        ("measured", {"device": "cuda", "optimizer": "sgd"}, Difference("optimizer", "sgd", "adam | adamw")),
        ("simulated", {"device": "cuda", "optimizer": "adam"}, Difference("origin", "simulated", "measured")),
        (
            "calculated",
            {"device": "cuda", "optimizer": "adam"},
            Difference("origin", "calculated", "measured"),
        ),
        ("emulated", {"device": "cuda", "optimizer": "adam"}, Difference("origin", "emulated", "measured")),
    ],
)
def test_what_differs_is_listed_and_is_elsewhere(
    origin: str, conditions: dict[str, str], differs: Difference
) -> None:
    verdict = one(claim(conditions=GPU), figure(100.0, origin=origin, conditions=conditions))
    assert verdict.outcome == "holds"
    assert verdict.where == "elsewhere"
    assert verdict.differs == (differs,)


def test_no_cpu_record_settles_a_gpu_claim_as_stated_whatever_it_says() -> None:
    for origin in ("measured", "emulated", "simulated", "calculated"):
        verdict = one(
            claim(conditions={"device": "cuda"}), figure(100.0, origin=origin, conditions={"device": "cpu"})
        )
        assert verdict.where == "elsewhere"
    there = figure(100.0, origin="measured", conditions={"device": "cuda"})
    assert one(claim(conditions={"device": "cuda"}), there).where == "as stated"


def test_a_calculation_settles_a_claim_by_its_sources_own_formula_alone() -> None:
    calculated = figure(100.0, origin="calculated")
    assert one(claim(), calculated).shown == "context"
    assert one(replace(claim(), formula="equation 2"), calculated).shown == "holds"
    assert one(replace(claim(), formula="equation 2"), figure(100.0, origin="simulated")).shown == "context"


def test_what_others_measured_settles_a_claim() -> None:
    assert one(claim(), figure(100.0, origin="published")).shown == "holds"


def test_a_claim_whose_outcome_the_set_up_fixes_is_never_judged() -> None:
    verdict = one(replace(claim(), not_judged="the links are scaled"), figure(100.0))
    assert (verdict.ours, verdict.shown) == (100.0, "context")
    assert verdict.differs == (Difference("not judged", "the links are scaled", ""),)


@pytest.mark.parametrize(
    ("name", "where"), [("NVIDIA A100-SXM4-80GB", "as stated"), ("NVIDIA H100", "elsewhere")]
)
def test_a_condition_may_be_a_pattern(name: str, where: str) -> None:
    verdict = one(
        claim(conditions={"device_name": "*A100*"}), figure(100.0, conditions={"device_name": name})
    )
    assert verdict.where == where
    assert verdict.differs == (
        () if where == "as stated" else (Difference("device_name", "NVIDIA H100", "*A100*"),)
    )


SHAPE = {"num_hidden_layers": 32, "micro_batch_size": 1, "optimizer": "adamw", "device_memory_B": 80e9}


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"num_hidden_layers": 4},
            "small was run with num_hidden_layers 4; this claim is about num_hidden_layers 32",
        ),
        (
            {"micro_batch_size": 2, "optimizer": "sgd_momentum"},
            "with micro_batch_size 2, optimizer sgd_momentum; this claim is about micro_batch_size 1, "
            "optimizer adamw",
        ),
        (
            {"device_memory_B": 141e9},
            "with device_memory_B 141 GB; this claim is about device_memory_B 80 GB",
        ),
    ],
)
def test_the_same_name_with_another_shape_gives_no_value(changed: dict[str, object], told: str) -> None:
    verdict = one(claim(requires=SHAPE), figure(100.0, fields={**SHAPE, **changed}))
    assert verdict.outcome == "unavailable"
    assert verdict.ours is None
    assert verdict.cell
    assert verdict.reason.endswith(told)
    assert one(claim(requires=SHAPE), figure(100.0, fields=SHAPE)).outcome == "holds"


def test_a_required_field_that_was_not_recorded_is_not_taken_as_met() -> None:
    verdict = one(claim(requires=SHAPE), figure(100.0, fields={"micro_batch_size": 1, "optimizer": "adamw"}))
    assert verdict.outcome == "unavailable"
    assert "no num_hidden_layers recorded, no device_memory_B recorded" in verdict.reason


def test_records_of_another_shape_do_not_mix_with_those_of_the_claims() -> None:
    other = figure(1.0, fields={**SHAPE, "num_hidden_layers": 4})
    verdict = one(claim(requires=SHAPE), other, figure(100.0, fields={**SHAPE, "more": 7}))
    assert (verdict.outcome, verdict.low, verdict.high) == ("holds", 100.0, 100.0)


def test_a_field_at_its_default_may_be_younger_than_the_record() -> None:
    held = claim(requires={"layers": 32}, defaults={"bias": False})
    assert one(held, figure(100.0, fields={"layers": 32})).outcome == "holds"
    assert one(held, figure(100.0, fields={"layers": 32, "bias": False})).outcome == "holds"
    verdict = one(held, figure(100.0, fields={"layers": 32, "bias": True}))
    assert (verdict.outcome, verdict.reason) == (
        "unavailable",
        "small was run with bias True; this claim is about bias False",
    )


PAPER_80_GB = 80e9  # Table I's heading


@pytest.mark.parametrize(("memory_B", "expected"), [(PAPER_80_GB, "holds"), (141e9, "unavailable")])
def test_hardware_of_more_memory_changes_no_count_of_the_papers_gpus(memory_B: float, expected: str) -> None:
    """On 141 GB the same step needs fewer devices: no figure about GPUs of 80 GB, while its bytes stand."""
    claims = {one.id: one for one in load_claims("memory")}
    fields = {**conf_workloads()["llama_7b"], "device_memory_B": memory_B}
    figures = {
        ("gpus", "fake_step"): ("1", "simulated", (4.0 if memory_B == PAPER_80_GB else 2.0,)),
        ("peak_memory", "fake_step"): ("B", "simulated", (280e9,)),
        ("peak_memory/of_nominal_parameters", "fake_step"): ("B", "simulated", (280e9,)),
    }
    record = made("llama_7b", "mixed_accumulated", figures, fields=fields, suite="memory")
    for id, due in (
        ("table_1_llama_7b_gpus", expected),
        ("seven_billion_more_than_one_80_GB", expected),
        ("table_1_llama_7b_memory", "holds"),
        ("seven_billion_more_than_one_141_GB", "holds"),
    ):
        verdicts = {v.interpretation: v for v in judge([claims[id]], [record])}
        assert verdicts["no checkpointing, explicit, accumulated"].outcome == due, id
