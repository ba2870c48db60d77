"""Questions: layouts that follow from what is said, and what does not divide."""

import pytest
from refusals import refused

from harness.question import FieldOrigin, question_of


def test_a_layout_that_does_not_divide_says_what_would():
    fields = {"sharing": "megatron", "tp": 8, "pp": 4, "global_batch_size": 30}
    refused(question_of(**fields, devices=48).dp_of, "tp 8 × pp 4 × cp 1 = 32")
    refused(question_of(**fields).dp_of, "devices")
    refused(question_of(**fields, devices=128).micro_batches, "30")


@pytest.mark.parametrize(("per_stage", "stages"), [(None, 2), (4, 1), (2, 2), (1, 4)])
def test_stages_follow_from_layers_per_stage(per_stage, stages):
    """14 layers, the embedding and the output layer are 16, on 4 ranks."""
    question = question_of(
        pp=4, dp=1, virtual_stages=2, layers_per_stage=per_stage, config={"num_hidden_layers": 14}
    )
    assert question.stages_per_rank() == stages
    refused(question.with_fields(FieldOrigin("command"), layers_per_stage=3).stages_per_rank, "pp 4")


def test_a_value_out_of_range_names_its_field():
    refused(lambda: question_of(tp=0), "tp")
    refused(lambda: question_of(optimizer="lion"), "optimizer")
