"""Every technique, alone and combined, on a tiny workload: its contract holds, and a breach is caught."""

import json
from dataclasses import replace

import pytest
from small_steps import LLAMA
from technique_cases import ALONE

from harness.records import Unavailable, WrongResult
from suites.training.correctness import check
from suites.training.step import CHANGES_THE_MATHEMATICS, loosest
from suites.training.techniques import build_step

TINY = replace(LLAMA, num_key_value_heads=2, micro_batch_size=8, tp_size=2, cp_size=2)

COMPANIONS = {"powersgd": [{"ddp": {"buckets": 1}}], "pipeline": ["gradient_accumulation"]}
"""What a technique needs next to it."""

MIXTURE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "ep_size": 2}
DEEP = {"num_hidden_layers": 4}
CHANGES = {"pipeline": {"pp_size": 2, **DEEP}, "expert_parallel": MIXTURE, "llama_adapter": DEEP}
"""What a technique needs of its workload."""


@pytest.mark.parametrize(("name", "given"), [one for one in ALONE if one[0] != "compile"], ids=str)
def test_a_technique_keeps_its_contract(name, given):
    workload = replace(TINY, **{"num_hidden_layers": 2, **CHANGES.get(name, {})})
    check(build_step(workload, [*COMPANIONS.get(name, []), {name: given}], seed=1))


ON_ONE = ["attention", "mixed_precision", "activation_checkpointing", "gradient_accumulation"]
COMBINED = {
    "all of one device": [*ON_ONE, {"optimizer": {"impl": "fused"}}],
    "offloaded": [{"activation_offload": {"prefetch": True}}, "ddp", "mixed_precision"],
    "zero-3, loss in chunks": ["zero", {"loss": {"chunks": 4, "chunked": "recompute"}}],
    "fsdp2, adapters": [{"fsdp2": {"head": "apart"}}, "lora", {"loss": {"chunks": 4}}, "bf16_states"],
    "a mesh of ranks": ["tensor_parallel", "fsdp2", "mixed_precision", "activation_checkpointing"],
    "long, zero-3, fused loss": ["zero", {"loss": {"fused": True}}],
    "long, shared sequences": ["context_parallel", "fsdp2", "attention", {"loss": {"chunks": 2}}],
}


@pytest.mark.parametrize("name", COMBINED)
def test_a_combination_keeps_the_loosest_contract_and_is_the_same_in_whatever_order(name):
    workload = replace(TINY, num_hidden_layers=2)
    step = build_step(workload, COMBINED[name], seed=1)
    assert step.contract == loosest(
        build_step(workload, [{one: given}]).contract for one, given in step.techniques
    )
    check(step)
    again = build_step(**json.loads(json.dumps(step.described)))
    assert again.described == step.described
    turned = build_step(workload, list(reversed(COMBINED[name])), seed=1)
    for one in (again, turned):
        for field in ("features", "ranks", "contract", "workload", "model_dtype"):
            assert getattr(one, field) == getattr(step, field)
        assert len(one.wraps) == len(step.wraps)


BY_SEQUENCE = {"tensor_parallel": {"sequence_parallel": True}}
ADAFACTOR, MUON = {"optimizer": {"name": "adafactor"}}, {"optimizer": {"name": "muon"}}
BF16_GRADIENTS = {"mixed_precision": {"gradients": "bf16"}}
FP32_GRADIENTS = {"mixed_precision": {"gradients": "fp32"}}
ON_HOST = {"fsdp2": {"cpu_offload": True}}
HF = {"model_type": "llama", "num_hidden_layers": 1, "hidden_size": 64, "vocab_size": 10}
STAGES = {"pp_size": 2, "gradient_accumulation_steps": 3}
WHOLE = ["fsdp2", {"expert_parallel": {"expert_tensor_parallel": False}}]
REFUSED = [
    ([{"ddp": {"reduce_dtype": "bf16"}}, "powersgd"], {}, "communication hook"),
    ([{"gradient_accumulation": {"steps": 3}}], {}, "micro_batch_size=8"),
    ([{"activation_checkpointing": {"every": 5}}], {}, "every=5.*num_hidden_layers=4"),
    ([{"loss": {"chunks": 49}}], {}, "chunks=49.*seq_len=48"),
    ([{"loss": {"fused": True, "chunks": 8}}], {}, "fused"),
    ([{"loss": {"chunked": "recompute", "keep_logits": "model"}}], {}, "chunked=recompute"),
    ([{"loss": {"compiled": True, "chunked": "in_place"}}], {}, "compiled widens"),
    ([{"loss": {"keep_logits": "fp32", "dtype": "bf16"}}], {}, "keep_logits=fp32.*dtype=bf16"),
    ([{"optimizer": {"name": "adamw_8bit", "impl": "fused"}}], {}, "adamw_8bit"),
    ([{"optimizer": {"name": "paged_adamw_8bit"}}], {}, "driver"),
    (["fsdp2", ADAFACTOR], {}, "Adafactor"),
    (["fsdp2", MUON], {}, "Muon"),
    (["zero", MUON], {}, "muon"),
    (["zero", FP32_GRADIENTS], {}, "bf16 gradients of its own"),
    ([FP32_GRADIENTS, MUON], {}, "have no names"),
    ([{"optimizer": {"name": "adamw_8bit"}}, ON_HOST], {}, "cpu_offload.*adamw_8bit"),
    (["fsdp2"], {"optimizer": "sgd_momentum", "optimizer_impl": "fused"}, "fused SGD"),
    (["optimizer_in_backward"], {"max_grad_norm": 1.0}, "max_grad_norm"),
    (["optimizer_in_backward", BF16_GRADIENTS], {}, "has its own"),
    (["float8"], {"hidden_size": 60}, "hidden_size=60"),
    ([{"lora": {"ends": True, "lightning": True}}], {}, "ends: the output layer, which lightning quantizes"),
    ([{"lora": {"targets": ["mixer", "gates"]}}], {}, "mixer, gates; there are down, gate, head, key"),
    ([{"lora": {"rank": 65}}], {}, "rank=65.*hidden_size=64"),
    ([{"lora": {"base": "int8"}}, "fsdp2"], {}, "fsdp2 shards parameters.*int8"),
    ([{"llama_adapter": {"base": "nf4"}}, "zero"], {}, "zero shards parameters.*nf4"),
    ([{"llama_adapter": {"start_layer": 4}}], {}, "start_layer=4.*3"),
    (["llama_adapter"], {"model": "suites.published.models:litgpt_llama"}, "llama_adapter"),
    (["fsdp1", BF16_GRADIENTS], {}, "torch's own optimizer"),
    (["fsdp1", ADAFACTOR], {}, "flat parts"),
    ([{"fsdp1": {"reduce_dtype": "bf16"}}], {}, "list mixed_precision too"),
    ([{"fsdp2": {"reshard_after_forward": 3}}], {}, "reshard_after_forward=3"),
    ([{"fsdp2": {"head": "apart"}}], {"tie_word_embeddings": True}, "shares the embedding"),
    (["context_parallel", {"fsdp2": {"shard_within": 3}}], {}, "shard_within=3 does not divide the 8 ranks"),
    (["tensor_parallel"], {"tp_size": 3}, "tp_size=3 does not divide num_attention_heads=4"),
    (["tensor_parallel"], {"hf_config": HF}, "shards the layers of suites"),
    ([BY_SEQUENCE], {"seq_len": 17}, "tp_size=2 does not divide seq_len=17"),
    (["tensor_parallel", ON_HOST], {}, "cpu_offload=True"),
    (["tensor_parallel", {"fsdp2": {"reshard_after_forward": 2}}], {}, "resharding to some ranks"),
    (["fsdp2", BY_SEQUENCE, "context_parallel"], {"seq_len": 36, "cp_size": 4}, "the 9 tokens"),
    (["context_parallel"], {"seq_len": 18}, r"seq_len=18.* 2 \* cp_size=4"),
    (["expert_parallel"], {}, "set num_experts"),
    (["expert_parallel"], {**MIXTURE, "ep_size": 1}, "ep_size=1"),
    (["expert_parallel"], {**MIXTURE, "ep_size": 3}, "ep_size=3 does not divide num_experts=4"),
    (["expert_parallel", "fsdp2"], {**MIXTURE, "dp_size": 3}, "ep_size=2 does not divide dp_size=3"),
    ([*WHOLE, BY_SEQUENCE], {**MIXTURE, "num_experts": 16, "ep_size": 16}, r"dp_size=4 \* tp_size=2"),
    ([*WHOLE, "tensor_parallel"], MIXTURE, "sequence_parallel=True"),
    (["tensor_parallel"], {**MIXTURE, "moe_intermediate_size": 23}, "moe_intermediate_size=23"),
    (["tensor_parallel"], {**MIXTURE, "shared_expert_intermediate_size": 23}, "shared_expert_interm.*=23"),
    (["pipeline"], {}, "pp_size=1"),
    (["pipeline"], {**STAGES, "pp_size": 3}, "3 stages do not divide num_hidden_layers=4"),
    (["pipeline"], {**STAGES, "pp_size": 4}, "pp_size=4.*gradient_accumulation_steps=3"),
    ([{"pipeline": {"stages_per_rank": 2}}], STAGES, "multiple of pp_size=2 micro-batches, and there are 3"),
    (["pipeline"], {**STAGES, "tie_word_embeddings": True}, "shared weight"),
    (["fsdp2"], STAGES, "pp_size=2 needs the technique pipeline"),
    (["fsdp3"], {}, "did you mean 'fsdp2'"),
    ([{"fsdp2": {"reshard": True}}], {}, "no setting 'reshard'; it has reduce_dtype"),
    ([{"zero": {"stage": 4}}], {}, "zero: stage=4: expected one of 1, 2, 3"),
    ([{"zero": {"stage": 2, "parameters": "host"}}], {}, "stage 3 alone"),
    ([{"loss": {"chunks": 0}}], {}, "loss: chunks=0: expected a whole number of at least 1"),
    ([{"lora": {"dropout": 1.0}}], {}, "lora: dropout=1.0: expected a number of at least 0 and below 1"),
]


@pytest.mark.parametrize(("given", "changes", "words"), REFUSED, ids=str)
def test_what_cannot_be_had_is_refused_in_one_line(given, changes, words):
    with pytest.raises((Unavailable, ValueError), match=words) as caught:
        build_step(replace(TINY, **{"dp_size": 4, **changes}), given)
    assert "\n" not in str(caught.value)


def test_fewer_and_more_sequences_than_an_update_should_have_are_caught():
    step = build_step(TINY, ["gradient_accumulation"], seed=1)
    with pytest.raises(WrongResult, match="loss of update"):
        check(replace(step, workload=replace(step.workload, gradient_accumulation_steps=1)))
    step = build_step(TINY, [{"gradient_accumulation": {"split": False}}], seed=1)
    assert step.batches_per_update == 2
    with pytest.raises(WrongResult, match="loss of update"):
        check(replace(step, batches_per_update=1))


def test_what_changes_the_mathematics_must_learn():
    step = build_step(TINY, [{"optimizer": {"name": "adafactor"}}], seed=1)
    assert step.contract is CHANGES_THE_MATHEMATICS
    check(step)
    still = replace(step, workload=replace(step.workload, learning_rate=0.0))
    with pytest.raises(WrongResult, match="it does not learn"):
        check(still)
