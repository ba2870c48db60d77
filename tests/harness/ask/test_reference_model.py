"""A reference model's bytes, against the trained model's own as torch counts them, and what it leaves."""

from __future__ import annotations

import pytest
import torch
import transformers
from msgspec.structs import replace
from small_config import CONFIG

from harness.ask.engines import answer_of
from harness.ask.reference import without_reference
from harness.question import Question

SIZES = CONFIG | {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16}
WHOLE = {"config": SIZES, "seq_len": 128, "devices": 4, "device": "a100_80gb"}


def weights(of):
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(**of))
    return sum(one.numel() for one in model.parameters())


@pytest.mark.parametrize(
    ("fields", "ranks"),
    [
        ({"sharing": "zero", "zero": 3, "program": "deepspeed"}, 4),
        ({"sharing": "zero", "zero": 2, "program": "deepspeed"}, 1),
        ({"sharing": "megatron", "program": "megatron", "tp": 2, "dp": 2}, 2),
    ],
)
def test_a_rank_has_its_part_of_the_reference_and_its_device_room_for_it(fields, ranks):
    alone = Question(**{**WHOLE, **fields})
    without, found = answer_of(alone), answer_of(replace(alone, reference_weight_B=2))
    copy_B = 2 * weights(SIZES) / ranks
    for name in ("allocated_B", "reserved_B"):
        more = getattr(found.memory, name).likely - getattr(without.memory, name).likely
        assert more == pytest.approx(copy_B, rel=0.01)
    assert found.memory.room_B == pytest.approx(without.memory.room_B, abs=1)


def test_what_fits_alone_does_not_fit_next_to_it():
    question = Question(**WHOLE, sharing="zero", zero=2, program="deepspeed")
    memory = answer_of(question).memory
    beyond_B = memory.usable_B - memory.room_B
    tight = replace(question, memory_B=memory.reserved_B.likely + beyond_B + weights(SIZES))
    assert answer_of(tight).likely_fits
    assert not answer_of(replace(tight, reference_weight_B=2)).likely_fits


@pytest.mark.parametrize(
    ("fields", "directions"),
    [
        ({"sharing": "zero", "zero": 3, "offload": ("parameters", "optimizer")}, []),  # on the host
        ({"sharing": "megatron", "program": "megatron", "ep": 2}, ["raises"]),
        ({"sharing": "megatron", "program": "megatron", "search": True}, ["raises"]),
        ({"config": {"model_type": "unheard_of"}}, ["raises"]),
    ],
)
def test_where_its_bytes_are_not_known_or_on_the_host_none_are_counted(fields, directions):
    asked = without_reference(Question(**{**WHOLE, **fields}, reference_weight_B=2))
    assert (asked.copy_B, asked.lost_B) == (0.0, 0.0)
    assert [key.memory for key in asked.question.keys] == directions
