"""What is trained changes seconds as typed fields say, whoever set them: a row or a framework's file."""

from dataclasses import replace

import numpy as np
import pytest

from harness.ask.engines import answer_of
from harness.question import question_of
from suites.training import seconds_engine
from suites.training.layouts.layout import Layouts
from suites.training.of_question import seconds_left_out, seconds_subject_of, setting_of
from suites.training.step_time.causes import places_of
from suites.training.step_time.eager import eager_pointwise_B, served_s
from suites.training.step_time.mixer import mixer_context_s, scan_s
from suites.training.step_time.prediction import HYBRID, as_run, interval_of, planned, predicted, run_kind
from suites.training.step_time.published.steps import nearest
from suites.training.step_time.questions import question_of_row
from suites.training.step_time.seconds import launches_s, repeated, step_s
from suites.training.step_time.setting import LayerKind

CONFIG = {
    "model_type": "llama", "num_hidden_layers": 16, "hidden_size": 2048, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256, "tie_word_embeddings": True,
}  # fmt: skip
HYBRID_CONFIG = {
    "model_type": "nemotron_h", "num_hidden_layers": 6, "hidden_size": 2048, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 8192, "vocab_size": 128256,
    "hybrid_override_pattern": "M-M*M-", "mamba_num_heads": 64, "mamba_head_dim": 64, "ssm_state_size": 128,
    "n_groups": 8, "conv_kernel": 4, "chunk_size": 128,
}  # fmt: skip


def asked(**fields):
    given = {"config": CONFIG, "devices": 8, "seq_len": 2048, "gradient_accumulation_steps": 2, "zero": 2}
    given |= {"sharing": "fsdp2", "program": "torchtitan"}
    subject = seconds_subject_of(question_of(**(given | fields)))
    return subject, setting_of(subject)


def parts_of(**fields):
    subject, of = asked(**fields)
    return step_s(of, subject.layout)


def test_a_reference_models_pass_lengthens_forward_and_backward_alone():
    plain, paired = parts_of(), parts_of(objective="dpo", forward_passes=1)
    assert paired.layers.matmul[0] == pytest.approx(plain.layers.matmul[0] * 4 / 3)
    assert paired.head[0] == pytest.approx(plain.head[0] * 4 / 3)
    assert paired.update[0] == plain.update[0]
    again = parts_of(recompute="full"), parts_of(recompute="full", forward_passes=1)
    assert again[1].head[0] == pytest.approx(again[0].head[0] * 5 / 4)


def test_an_engine_reads_its_weights_once_per_token_and_caches_besides():
    subject, of = asked(rollout="vllm")
    layouts, shape = subject.layout, of.shape
    answers = 2  # of one GPU
    cache_B = answers * 4 * 8 * 64 * 16 * 1024
    expected = 2048 * (2 * shape.parameters + cache_B) / of.memory_B_per_s
    assert served_s(of, layouts)[0] == pytest.approx(expected)
    many = layouts._replace(micro_batches=np.array([10**6]))
    peak = of.gpu.peak_FLOP_per_s("bf16")
    assert served_s(of, many)[0] >= 2048 * 2 * shape.active_parameters * 10**6 / peak
    subject, of = asked(rollout="transformers")
    assert step_s(of, layouts).generation[0] > 5 * served_s(of, layouts)[0]


def test_a_pair_is_two_sequences_in_rows_as_in_files():
    shape = {name: size for name, size in CONFIG.items() if isinstance(size, int)}
    row = {"model": "Llama-3.2-1B", "device": "H100", "gpus": 1, "framework": "TRL", "method": "dpo"}
    row |= {"seq_len": 512, "shape": shape}
    question = question_of_row({**row, "micro_batch_size": 3, "padded_or_packed": "padding-free"})
    assert (question.objective, question.forward_passes, question.micro_batch_size) == ("dpo", 1, 6)
    assert question.shorter
    grpo = {**row, "method": "grpo", "other": {"rollout_n": 4, "train_batch_size": 8}}
    asked = [question_of_row({**grpo, "framework": name}) for name in ("TRL", "verl")]
    assert [one.rollout for one in asked] == ["transformers", "vllm"]
    assert [one.global_batch_size for one in asked] == [32, 32]


def test_shorter_sequences_widen_the_interval_up_to_full_ones():
    questions = (asked(shorter=one, seq_len=32768)[0].question for one in (False, True))
    full, shorter = (seconds_engine.answer(one).layouts[0] for one in questions)
    assert shorter.step_s.likely < 0.4 * full.step_s.likely
    assert shorter.step_s.high == pytest.approx(full.step_s.high)
    assert shorter.as_run_s.high == pytest.approx(full.as_run_s.high)
    assert shorter.mfu < full.mfu


def test_no_end_is_faster_than_the_datasheet():
    assert tuple(seconds_engine.bounded(2.0, 1.0, (0.5, 1.0, 3.0))) == (2.0, 2.0, 3.0)


def test_a_scan_takes_what_its_published_kernels_take_and_its_ranks_change_sequences_for_heads():
    """64 heads of 64 with a state of 128 at 1.2e13 elements per second; backward three times as long."""
    _, of = asked(config=HYBRID_CONFIG, program="megatron", sharing="megatron", device="h100_80gb")
    forward, backward = scan_s(of)
    assert forward == pytest.approx(64 * 64 * 128 / 1.2e13)
    assert backward == pytest.approx(3 * forward)
    slower = replace(of, cluster=of.cluster._replace(gpu=replace(of.gpu, memory_B_per_s=3.35e12 / 2)))
    assert scan_s(slower)[0] == pytest.approx(2 * forward)
    unknown = replace(of, shape=replace(of.shape, mixer=of.shape.mixer._replace(name="lightning")))
    assert 0 < scan_s(unknown)[0] < forward
    layouts = Layouts.of([{"dp": 8}, {"dp": 2, "cp": 4}])
    alone, shared = mixer_context_s(of, layouts)
    sent_B = 2 * 2048 / 4 * (of.shape.mixer.projected + 64 * 64) * 3 / 4
    assert alone == 0
    waits_s = 4 * (of.links.collective_s + of.links.node_hop_s)
    assert shared == pytest.approx(2 * sent_B / of.links.node_B_per_s + waits_s)


EXPERTS = {
    **CONFIG, "model_type": "mixtral", "num_local_experts": 64, "num_experts_per_tok": 2,
    "intermediate_size": 1024,
}  # fmt: skip
MEGATRON = {"config": EXPERTS, "program": "megatron", "sharing": "megatron", "zero": 1}


def test_each_expert_of_a_rank_is_launched_and_more_so_in_eight_bits():
    wide, narrow = (asked(**MEGATRON, device="h100_80gb", precision=one)[1] for one in ("bf16", "fp8"))
    layouts = Layouts.of([{"dp": 8, "ep": 8}, {"dp": 8, "ep": 1}])
    host = [launches_s(of, layouts, LayerKind(True, False)) for of in (wide, narrow)]
    assert host[0][1] - host[0][0] == pytest.approx((64 - 8) * 6e-5)
    assert host[1][1] - host[1][0] == pytest.approx((64 - 8) * 18e-5)


def test_a_page_that_prints_micro_batches_is_asked_for_one():
    row = {
        "framework": "LitGPT", "model": "Llama-2-7B", "device": "A100-SXM4-40GB", "gpus": 2, "seq_len": 1024,
        "micro_batch_size": 1, "gradient_accumulation_steps": 64, "kind": "finetune", "method": "lora",
        "other": {"global_minibatch": 128, "step_is": "one micro-batch iteration"},
    }  # fmt: skip
    asked_so = question_of_row(row, lambda name: CONFIG)
    one = question_of_row(row | {"gradient_accumulation_steps": 1, "other": {}}, lambda name: CONFIG)
    assert (asked_so.micro_batches(), one.micro_batches()) == (64, 1)  # under FSDP gradients add up unsharded
    seconds = {answer_of(each, seconds=True).layouts[0].step_s for each in (asked_so, one)}
    assert len(seconds) == 1


def test_recomputed_experts_repeat_their_part_of_a_layer_and_core_attention_its_kernel():
    kind, layouts = LayerKind(True, False), Layouts.of([{"dp": 8, "recompute": 1}])
    for modules, expected in ((("moe",), (0.5, 0, 0.5, 0, 0.5)), (("core_attn",), (0, 1, 0, 0, 0))):
        _, of = asked(**MEGATRON, recompute="selective", recompute_modules=modules)
        assert [float(share[0]) for share in repeated(of, layouts, kind)] == list(expected)


def test_places_add_up_and_generation_has_one():
    for rollout, place in (("transformers", "gaps"), ("vllm", "computing")):
        subject, of = asked(objective="grpo", rollout=rollout, forward_passes=1)
        steps = planned(of, subject.layout, subject.batch)
        found = predicted(steps)
        places = places_of(found, float(steps.batches[0]), rollout)
        assert sum(places.values()) == pytest.approx(float(found.seconds[0]))
        assert places["idle"] < 0.1 * float(found.seconds[0])
        plain = places_of(found, float(steps.batches[0]))
        without = found.parts.by_name(0)["generation"]
        assert without > 0
        assert places[place] >= without
        assert sum(plain.values()) == pytest.approx(sum(places.values()))


def test_a_layer_of_one_part_has_one_norm():
    _, of = asked()
    of = replace(of, run=of.run._replace(eager=True))
    both = eager_pointwise_B(of, LayerKind(False, False)).forward
    attention = eager_pointwise_B(of, LayerKind(False, False, mlp=False)).forward
    inner = eager_pointwise_B(of, LayerKind(False, False, attention=False)).forward
    mixer = eager_pointwise_B(of, LayerKind(False, False, attention=False, linear=True, mlp=False)).forward
    assert both == pytest.approx(attention + inner)
    assert 0 < mixer < attention


def test_hybrids_are_a_kind_of_their_own():
    subject, of = asked(config=HYBRID_CONFIG, program="megatron", sharing="megatron", zero=1)
    assert run_kind(of) == HYBRID
    ends = as_run(HYBRID)
    assert ends is not None
    assert ends.likely > 1
    assert interval_of(planned(of, subject.layout, None), 0.5).kind == HYBRID
    assert list(nearest(of, subject.layout)) == []


def test_an_engines_seconds_are_left_out_and_wide():
    subject, of = asked(objective="ppo", rollout="vllm")
    interval = interval_of(planned(of, subject.layout, None), 0.5)
    assert interval.high / interval.low > 10
    said = " ".join(seconds_left_out(subject.question))
    assert "engine" in said
    assert "critic" in said
