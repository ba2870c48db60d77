"""Megatron-LM's own files: what each kind of argument becomes, and the peaks that its tests publish."""

from pathlib import Path

import msgspec
import pytest
import yaml

from harness.ask.engines import answer_of
from harness.ask.words import FIT, question_from, words_of
from harness.frameworks.read import read_own_file, read_own_text, read_values
from harness.frameworks.table import framework_named
from suites.training.of_question import shape_of, subject_of

DATA = Path(__file__).parents[2] / "data"
PUBLISHED = yaml.safe_load((DATA / "megatron_peaks.yaml").read_text())
SMALL = "--num-layers 8 --hidden-size 512 --num-attention-heads 8 --micro-batch-size 2 --seq-length 1024 "
SMALL += "--overlap-grad-reduce "
GPT = f"{SMALL}--max-position-embeddings 1024 --global-batch-size 32 --bf16 --vocab-size 1024 "
FULL = "--recompute-granularity full"
EXPERTS = f"{GPT}--num-experts 8 --moe-router-topk 2 "


@pytest.mark.parametrize(("text", "expected"), [
    (GPT, {"vocab_size": 1024, "dropout": 0.1, "mlp_bias": True, "learned_positions": 1024, "gated": False}),
    (f"{GPT}--swiglu", {"gated": True, "layer_norm": True, "intermediate_size": 1344}),
    (f"{GPT}--disable-bias-linear --add-qkv-bias", {"mlp_bias": False, "qkv_bias": True}),
    (f"{GPT}--normalization RMSNorm --squared-relu", {"gated": False, "layer_norm": False}),
    (f"{GPT}--group-query-attention --num-query-groups 2", {"num_key_value_heads": 2}),
    (f"{GPT}--group-query-attention", {"num_key_value_heads": 1}),
    (f"{GPT}--num-experts 0", {"num_experts": 0}),
    (f"{SMALL}--vocab-size 1024", {"precision": "fp32", "attention": "explicit"}),
    (f"{GPT}--optimizer dist_muon", {"optimizer": "muon", "zero": 1}),
    (f"{GPT}--hybrid-layer-pattern M-|M*/*-/*- --pipeline-model-parallel-size 2",
     {"layers_of_stages": (2, 2), "virtual_stages": 1, "num_nextn_predict_layers": 2}),
    (f"{GPT}--hybrid-layer-pattern M-|M|M-*|* --pipeline-model-parallel-size 2",
     {"layers_of_stages": (2, 1, 3, 1), "virtual_stages": 2}),
    (f"{EXPERTS}--moe-layer-recompute", {"recompute_modules": ("core_attn", "moe")}),
    (f"{GPT}--use-megatron-fsdp", {"gradients": "bf16"}),
    (f"{GPT}--use-megatron-fsdp --megatron-fsdp-main-grads-dtype fp32", {"gradients": "fp32"}),
    (f"{GPT}--multi-latent-attention --kv-lora-rank 64", {"kv_lora_rank": 64, "layer_norm": True}),
    (f"{GPT}--mtp-num-layers 1 --position-embedding-type rope", {"num_nextn_predict_layers": 1}),
    (f"{SMALL}--merge-file m.txt --tensor-model-parallel-size 2", {"vocab_size": 50432}),
    (f"{SMALL}--tokenizer-type TikTokenizer", {"vocab_size": 131072}),
    (f"{SMALL}--tokenizer-type HuggingFaceTokenizer --tokenizer-model Qwen/Qwen3-8B", {"vocab_size": 151936}),
    (f"{SMALL}--tokenizer-type Llama2Tokenizer --tokenizer-model a/llama-2/t.model", {"vocab_size": 32000}),
    (f"{EXPERTS}--moe-shared-expert-intermediate-size 640 --moe-shared-expert-gate",
     {"shared_intermediate_size": 640, "shared_gate": True, "moe_layers": (True,) * 8}),
    (f"{EXPERTS}--moe-layer-freq ([0,1]*4)", {"moe_layers": (False, True) * 4}),
    (f"{EXPERTS}--moe-layer-freq 2", {"moe_layers": (True, False) * 4}),
    (f"{EXPERTS}--moe-layer-freq ([0]*3+[1]*5)", {"moe_layers": (False,) * 3 + (True,) * 5}),
    (f"{EXPERTS}--moe-router-force-load-balancing", {"imbalance": 1.0}),
    (f"{EXPERTS}--moe-expert-capacity-factor 1.1", {"capacity_factor": 1.1, "imbalance": None}),
    (f"{EXPERTS}--moe-expert-capacity-factor 1.5 --moe-pad-expert-input-to-capacity", {"imbalance": 1.5}),
    (f"{GPT}--attention-backend unfused", {"attention": "explicit"}),
    (f"{SMALL}--fp16 --vocab-size 1024", {"precision": "fp16", "gradients": "bf16"}),  # 16 bits, of either
    (f"{SMALL}--fp16 --vocab-size 1024 --accumulate-allreduce-grads-in-fp32", {"gradients": "fp32"}),
    (f"{GPT}--transformer-impl local", {"attention": "explicit"}),
    (f"{GPT}--cross-entropy-loss-fusion --deterministic-mode", {"fused_loss": True, "deterministic": True}),
    (f"{GPT}--defer-embedding-wgrad-compute --wgrad-deferral-limit 2", {"deferred_head_gradients": 2}),
    (f"{GPT}--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads", {"zero": 2,
     "sharing": "megatron", "program": "megatron"}),
    (f"{GPT}--pipeline-model-parallel-size 4 --pipeline-model-parallel-layout 'Et|tt|(tt|)*1tttL'",
     {"layers_of_stages": (1, 2, 2, 3), "virtual_stages": 1}),
    (f"{GPT}--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout 'Ett|(tt|)*2ttL'",
     {"layers_of_stages": (2, 2, 2, 2), "virtual_stages": 2}),
    (f"{GPT}--num-layers 6 --pipeline-model-parallel-size 4 --account-for-embedding-in-pipeline-split "
     "--account-for-loss-in-pipeline-split --num-layers-per-virtual-pipeline-stage 1",
     {"layers_of_stages": (0, 1, 1, 1, 1, 1, 1, 0), "virtual_stages": 2}),
    (f"{GPT}--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 2 "
     "--microbatch-group-size-per-virtual-pipeline-stage 3", {"virtual_stages": 2, "micro_batch_group": 3}),
    ("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" + f"torchrun pretrain_gpt.py {GPT}",
     {"expandable_segments": True}),
    (f'OPTIONS="{GPT}"\nsh -c "python pretrain_gpt.py $OPTIONS"', {"vocab_size": 1024, "precision": "bf16"}),
    (f"{GPT}--img-h 336 --img-w 336 --decoder-seq-length 4096", {"seq_len": 4096, "vocab_size": 1024}),
    (f'A="{SMALL} --tokenizer-model "my/Qwen2.5-Math-7B" --make-vocab-size-divisible-by 64 --bf16"\n',
     {"seq_len": 1024, "precision": "bf16", "vocab_size": 152064}),
])  # fmt: skip
def test_an_argument_is_passed_on(text, expected):
    question = read_own_text(text)
    shape = shape_of(question.config)
    found = {name: getattr(question if hasattr(question, name) else shape, name) for name in expected}
    assert found == expected


@pytest.mark.parametrize(("text", "says"), [
    (f"{GPT}--hybrid-layer-pattern M-MG", "hybrid_layer_pattern has G"),
    (f"torchrun pretrain_mamba.py {GPT}", "a hybrid of state-space layers"),
    (f"{GPT}--encoder-num-layers 8 --decoder-num-layers 8", "an encoder and a decoder"),
    (f"python convert_model.py {SMALL}--algorithm eagle3\npython finetune.py {GPT}", "eagle3: it is a draft"),
    (f"{SMALL}--num-tokens-to-generate 8", "generates text and trains nothing"),
    (f"torchrun tools/run_text_generation_server.py {SMALL}", "generation of text or an evaluation"),
    (f"python -m examples.inference.offline_inference {SMALL}", "generation of text or an evaluation"),
    (f"torchrun tasks/main.py --task LAMBADA {SMALL}", "generation of text or an evaluation"),
    (f"torchrun pretrain_gpt.py --skip-train {GPT}", "generation of text or an evaluation"),
    (f"torchrun examples/mimo/train.py --model-provider llava_vlm {GPT}", "a model of examples/mimo"),
    (f"{GPT}--hybrid-layer-pattern M|M|* --pipeline-model-parallel-size 2", "layer_pattern has 3 stages"),
    (f"{EXPERTS}--moe-layer-freq [1]*7", "has 7 layers, num_layers is 8"),
    (f"{GPT}--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout Et*8x", "it has E, t, m, L"),
    (f"{GPT}--pipeline-model-parallel-size 2 --pipeline-model-parallel-layout E|t*8|L", "no multiple of"),
    (f"{GPT}--pipeline-model-parallel-size 4 --decoder-first-pipeline-num-layers 1", "gives no stages"),
])  # fmt: skip
def test_what_is_no_language_model_in_training_is_refused_by_what_it_is(text, says):
    with pytest.raises(ValueError, match=r"^[^\n]+$") as error:
        read_own_text(text)
    assert says in str(error.value)


TOKENIZERS = [("$MODEL", 8, "either"), ("mine/tokenizer.model", 8, "raises"), ("$MODEL", 800, "none")]


@pytest.mark.parametrize(("tokenizer", "layers", "memory"), TOKENIZERS)
def test_a_vocabulary_that_is_in_no_key_is_assumed_and_said(tokenizer, layers, memory, tmp_path):
    kind = "Llama2Tokenizer" if memory == "raises" else "HuggingFaceTokenizer"
    text = f"{SMALL}--tokenizer-type {kind} --tokenizer-model {tokenizer} --num-layers {layers}"
    question = read_own_text(text)
    (said,) = [key for key in question.keys if key.key == "vocab_size"]
    assert (said.status, said.memory) == ("not modelled", memory)
    (tmp_path / "a.sh").write_text(text)
    words = words_of([f"config={tmp_path / 'a.sh'}", "vocab_size=5000"], FIT)
    given = question_from(words)
    assert given.config["vocab_size"] == 5000
    assert not [key for key in given.keys if key.status == "not modelled"]


@pytest.mark.parametrize(("more", "sequences"), [
    ("", 1152),
    ("--train-samples 19531250", 384),  # 80B tokens: tests/functional_tests/…/gpt3_15b_8t_release
    ("--train-samples 60000000", 768),
    ("--train-iters 127156", 384),  # 48,828,125 samples are reached after 127,157 steps
    ("--train-iters 127158", 768),
    ("--global-batch-size 32", 32),
])  # fmt: skip
def test_a_schedule_of_batches_gives_the_last_that_is_reached(more, sequences):
    """Thresholds in tokens (Megatron-LM d98e8a6, core/num_microbatches_calculator.py)."""
    text = GPT.replace("--seq-length 1024", "--seq-length 4096").replace("--global-batch-size 32 ", "")
    text += f"--step-batch-size-schedule '0:384 200B:768 400B:1152' {more}"
    question = read_own_text(f"torchrun pretrain_gpt.py {text}", suffix=".sh")
    assert question.global_batch_size == sequences
    (key,) = [one for one in question.keys if one.key == "step_batch_size_schedule"]
    assert (key.memory, key.seconds) == ("none", "lowers")
    with pytest.raises(ValueError, match="step_batch_size_schedule is '384'; it must be as"):
        read_own_text(f"torchrun pretrain_gpt.py {GPT} --step-batch-size-schedule 384", suffix=".sh")
    for odd in (f"0:{'9' * 400}", f"0:8 {'9' * 400}:16"):
        with pytest.raises(ValueError, match=r"step_batch_size_schedule is .{0,50}; a number in it is above"):
            read_own_text(f"torchrun pretrain_gpt.py {GPT} --step-batch-size-schedule {odd}", suffix=".sh")


def test_flags_at_the_end_of_an_array_are_read():
    question = read_own_file(DATA / "shell" / "megatron_array_flags.sh")
    found = (question.precision, question.zero, question.sequence_parallel, question.devices)
    assert found == ("bf16", 1, True, 8)
    shape = shape_of(question.config)
    assert (shape.tie_word_embeddings, shape.gated, shape.vocab_size) == (False, True, 32256)


def test_what_bounds_the_rows_of_experts_and_the_allocator_is_passed_to_the_account():
    flags = "--expert-model-parallel-size 4 --moe-expert-capacity-factor 1.0 --moe-grouped-gemm"
    question = read_own_text(f"{EXPERTS}{flags}").with_fields(read_own_text(GPT).origin("seq_len"), devices=8)
    assert subject_of(question).training.imbalance == 1.0
    answer, other = answer_of(question), answer_of(msgspec.structs.replace(question, capacity_factor=None))
    assert answer.memory.allocated_B.likely < other.memory.allocated_B.likely
    assert answer.memory.even_routing_B is None is not other.memory.even_routing_B
    expandable = answer_of(msgspec.structs.replace(question, expandable_segments=True))
    assert expandable.memory.reserved_B.likely < answer.memory.reserved_B.likely


@pytest.mark.parametrize("case", PUBLISHED["peaks"], ids=lambda case: case["test"].partition("/")[2])
def test_a_published_peak_is_predicted_from_its_own_arguments(case):
    question = read_values({**PUBLISHED["common"], **case["keys"]}, framework_named("megatron"))
    question = question.with_fields(question.origin("tp"), devices=case["devices"], device=case["device"])
    assert answer_of(question).memory.last_stage_B == pytest.approx(case["published_B"], rel=0.02)


def test_the_tower_a_frozen_model_and_generation_are_named_with_their_direction():
    for words, named in (
        ("--img-h 336", {"img_h": "raises"}),
        ("--img-h 336 --freeze-LM", {"img_h": "raises", "freeze_LM": "lowers"}),
        ("--vision-model-type clip --freeze-ViT", {"vision_model_type": "raises", "freeze_ViT": "raises"}),
        ("--tokenizer-type MultimodalTokenizer", {"tokenizer_type": "raises"}),
        ("--grpo-group-size 4", {"grpo_group_size": "either"}),
        (f"{FULL} --recompute-method block --recompute-num-layers 8", {}),
        (
            "--swiglu --no-bias-swiglu-fusion --no-rope-fusion",
            {"no_bias_swiglu_fusion": "raises", "no_rope_fusion": "none"},
        ),
        ("--use-distributed-optimizer", {"overlap_param_gather": "none"}),
        ("--use-megatron-fsdp --megatron-fsdp-grad-comm-dtype bf16", {}),
        (
            "--use-megatron-fsdp --megatron-fsdp-grad-comm-dtype fp32",
            {"megatron_fsdp_grad_comm_dtype": "raises"},
        ),
        ("--seq-length 32768", {"create_attention_mask_in_dataloader": "raises"}),
        ("--seq-length 32768 --no-create-attention-mask-in-dataloader", {}),
        ("--exp-avg-dtype fp32 --cp-comm-type p2p --optimizer-offload-fraction 1.0", {}),
        (f"{FULL} --recompute-method block --recompute-num-layers 7", {"recompute_method": "raises"}),
    ):
        keys = read_own_text(f"{GPT}{words}").keys
        assert {one.key: one.memory for one in keys if one.status == "not modelled"} == named


def test_the_pattern_of_a_hybrid_and_not_num_layers_says_how_many_layers_it_has():
    question = read_own_text(f"{GPT}--hybrid-layer-pattern M-M*", suffix=".sh")
    assert question.config["num_hidden_layers"] == 4
