"""Seconds of transformers' layers with adapters, of experts and of states on the host, by counts."""

from dataclasses import replace

import pytest

from harness.instruments.transformer import TransformerShape
from suites.training.layouts.layout import FrozenBase, Layouts, Training
from suites.training.of_question import seconds_subject_of, setting_of
from suites.training.step_time.constants import GpuCluster, StepConstants
from suites.training.step_time.gpu import gpu_of
from suites.training.step_time.layer import expert_exposed_s, imbalance_of, pointwise_s
from suites.training.step_time.prediction import TUNED, as_run, memory_B, run_kind
from suites.training.step_time.questions import device_fields, question_of_row
from suites.training.step_time.seconds import step_s
from suites.training.step_time.setting import (
    AdapterLoad,
    LayerAdapters,
    LayerKind,
    RunFacts,
    StepSetting,
)

LAYERS, HIDDEN, WIDTH = 24, 2048, 5504
SHAPE = TransformerShape(
    num_hidden_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=16, num_key_value_heads=16,
    head_dim=128, intermediate_size=WIDTH, vocab_size=32000,
)  # fmt: skip
EXPERTS = TransformerShape(
    num_hidden_layers=LAYERS, hidden_size=HIDDEN, num_attention_heads=32, num_key_value_heads=4, head_dim=128,
    intermediate_size=0, moe_intermediate_size=768, num_experts=128, experts_per_token=8, vocab_size=32000,
)  # fmt: skip
CONSTANTS = StepConstants.read()
EAGER = RunFacts(eager=True, adapters_alone=True)


def setting(shape=SHAPE, seq_len=1024, run=EAGER, program="torchtitan", network="infiniband", **training):
    cluster = GpuCluster(gpu_of("a100_80gb"), 8, 25e9, network)
    return StepSetting(
        shape, Training(seq_len=seq_len, program=program, **training), cluster, CONSTANTS, run=run
    )


def seconds(of, **row):
    return float(step_s(of, Layouts.of([row])).total[0])


def test_short_sequences_take_as_long_as_their_launches():
    """A layer's own and seven adapters', the forward pass twice with recompute."""
    adapted = EAGER._replace(adapters=LayerAdapters(AdapterLoad(7, 7 * HIDDEN, 7 * HIDDEN)))
    row = {"recompute": 2, "micro_batches": 8}
    found = [seconds(setting(seq_len=length, run=adapted), **row) for length in (32, 64)]
    layer_s = CONSTANTS["eager.layer_launch_s"] + 7 * CONSTANTS["eager.adapter_launch_s"]
    assert found == pytest.approx([8 * LAYERS * (4 / 3) * layer_s] * 2, rel=0.05)
    assert seconds(setting(seq_len=32), **row) < found[0]


def test_kernels_of_their_own_move_what_their_operators_read_and_write():
    """Two norms of 36 bytes, two sums of 6, rotations of 20, and SiLU with its product of 10, forward."""
    of, layouts = setting(seq_len=4096), Layouts.of([{}])
    rotated = SHAPE.query_size + SHAPE.key_value_size / 2
    moved_B = 4096 * (2 * (36 + 6) * HIDDEN + 20 * rotated + 10 * WIDTH)
    adapters = LayerAdapters(AdapterLoad(1, HIDDEN, WIDTH))
    forward, fused, adapted = (
        pointwise_s(replace(of, run=run), layouts, LayerKind(False, False), []).forward[0]
        for run in (EAGER, EAGER._replace(fused=True), EAGER._replace(adapters=adapters))
    )
    assert forward == pytest.approx(moved_B / of.memory_B_per_s)
    assert fused < forward / 3
    assert adapted - forward == pytest.approx(4096 * (8 * HIDDEN + 12 * WIDTH) / of.memory_B_per_s)


def test_a_quantized_base_is_unpacked_in_each_of_three_passes():
    of = setting(seq_len=8192)
    weights = SHAPE.layer_parameters(moe=False) * LAYERS
    each_s = CONSTANTS["dequantized_B.nf4"] * weights / of.memory_B_per_s
    without, with_ = (
        seconds(replace(of, run=EAGER._replace(base=base)), recompute=2) for base in ("", "nf4")
    )
    assert with_ - without == pytest.approx(3 * each_s, rel=0.01)


def test_states_on_the_host_are_sent_and_updated_there():
    """Two bytes of a gradient down, two of a parameter up; the CPUs of a node update all of its part."""
    run, row = RunFacts(), {"dp": 8, "zero": 3}
    plain = seconds(setting(run=run), **row)
    offloaded = seconds(setting(run=run, offload="optimizer"), **row)
    updated_s = float(step_s(setting(run=run), Layouts.of([row])).update[0])
    part = SHAPE.parameters / 8
    sent_s = 4 * part / CONSTANTS["host.link_B_per_s.ampere"]
    on_host_s = 8 * part / CONSTANTS["host.update_per_s.ampere"]
    assert offloaded - plain + updated_s == pytest.approx(sent_s + on_host_s, rel=0.02)
    assert seconds(setting(run=run, offload="parameters"), **row) > offloaded
    frozen = FrozenBase(0.5, 0.0, 0.01)
    kept, moved = (seconds(setting(offload=one, frozen=frozen), **row) for one in ("none", "parameters"))
    assert moved - kept < (offloaded - plain) / 2


def test_activations_on_the_host_cross_the_link_twice_as_far_as_no_kernel_hides_it():
    """What they save of the peak, but for two layers that stay, is what a pass sends."""
    link_B_per_s, run = 1e8, RunFacts()
    slow = StepConstants(CONSTANTS | {"host.link_B_per_s.ampere": link_B_per_s})
    of, parked = (setting(run=run, seq_len=8192, activations_on_host=on) for on in (False, True))
    layouts = Layouts.of([{}])
    saved_B = float((memory_B(of, layouts) - memory_B(parked, layouts))[0]) / (LAYERS - 2)
    added_s = seconds(replace(parked, constants=slow)) - seconds(of)
    assert added_s == pytest.approx(2 * LAYERS * saved_B / link_B_per_s, rel=0.02)
    assert seconds(parked, recompute=2) == pytest.approx(seconds(of, recompute=2))


def test_deepep_sends_a_token_once_per_node_but_not_on_efa():
    """Of two nodes half of eight copies cross, and half of the one that DeepEP sends to each node reached."""
    layouts = Layouts.of([{"dp": 16, "ep": 16}])

    def exposed_s(dispatcher, network):
        run = RunFacts(synchronous_experts=True, dispatcher=dispatcher)
        return float(expert_exposed_s(setting(EXPERTS, run=run, network=network), layouts)[0])

    assert exposed_s("alltoall", "infiniband") > 2 * exposed_s("deepep", "infiniband")
    assert exposed_s("deepep", "efa") > 1.4 * exposed_s("alltoall", "efa")


def test_the_busiest_rank_has_more_tokens_where_routing_is_not_forced():
    layouts = Layouts.of([{"dp": 8, "ep": ep} for ep in (1, 2, 8)])
    tuned = imbalance_of(setting(EXPERTS), layouts)
    assert (tuned[0], *sorted(tuned)) == (1.0, *tuned)
    assert tuned[2] - 1 == pytest.approx(3 * (tuned[1] - 1))
    assert (imbalance_of(setting(EXPERTS, run=EAGER._replace(imbalance=1.0)), layouts) == 1.0).all()
    assert imbalance_of(setting(EXPERTS, program="megatron"), layouts)[2] < tuned[2]


ROW = {
    "id": "one", "kind": "finetune", "model": "Qwen3-0.6B", "device": "A100 80GB", "gpus": 2, "seq_len": 1024,
    "micro_batch_size": 1, "precision": "bf16", "framework": "TRL SFTTrainer + PEFT", "method": "lora",
    "lora": {"rank": 8, "targets": ["q_proj", "v_proj"]}, "sharding": "fsdp1", "shape": {
        "num_hidden_layers": 28, "hidden_size": 1024, "num_attention_heads": 16, "num_key_value_heads": 8,
        "head_dim": 128, "intermediate_size": 3072, "vocab_size": 151936,
    },
}  # fmt: skip


def asked(**changed):
    subject = seconds_subject_of(question_of_row({**ROW, **changed}))
    return subject, setting_of(subject)


def test_a_row_says_whose_kernels_run_and_what_else_a_step_does():
    _, of = asked()
    assert of.run.eager
    assert of.run.adapters == LayerAdapters(AdapterLoad(2, 2 * 1024, 2048 + 1024))
    assert run_kind(of) == "transformers with adapters"
    assert not asked(framework="Megatron-LM", sharding="zero1")[1].run.eager
    assert asked(method="qlora")[1].run.base == "nf4"
    assert asked(method="qlora", precision="fp16")[1].run.base == "gptq"
    assert asked(method="grpo")[1].run.rollout == "transformers"
    assert asked(method="grpo", framework="verl")[1].run.rollout == "vllm"
    subject, of = asked(method="dpo")
    assert (of.run.forward_passes, subject.question.micro_batch_size) == (1, 2)
    shorter = asked(padded_or_packed="padded to longest of batch")[1].training.seq_len
    assert shorter == round(1024 * CONSTANTS["shorter_share"])
    submitted = asked(source="MLPerf Training v5.1", framework="NeMo", sharding="")[1]
    assert run_kind(submitted) == TUNED
    assert as_run(TUNED) is None


def test_a_device_is_known_by_its_name():
    for text, name in (
        *(("NVIDIA H200-SXM5-141GB", "h200"), ("GH200 96GB", "gh200"), ("RTX 3070 Laptop-8GB", "rtx3070")),
        *(("A10 24GB", "a10"), ("A10G 24GB", "a10g"), ("AMD Instinct MI325X 256GB HBM3E", "mi325x")),
    ):
        assert device_fields(text) == {"device": name}


def test_answers_are_generated_token_by_token():
    generated = seconds(setting(run=EAGER._replace(rollout="transformers"))) - seconds(setting())
    assert generated == pytest.approx(1024 * LAYERS * CONSTANTS["rollout.layer_launch_s"], rel=0.01)
