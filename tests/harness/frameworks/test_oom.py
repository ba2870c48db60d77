"""Out-of-memory messages of several torch versions, the tensor that each asked for, and the place in a step.

tests/data/oom.yaml has the messages and the tracebacks; the numbers follow from shapes.
"""

import json
import math
from functools import cache
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from harness.frameworks.models import published_model
from harness.frameworks.oom import messages_in, read_oom, where_of
from harness.frameworks.step_tensors import step_tensors
from harness.question import question_of
from suites.training.layouts.shape_of_config import shape_of_config

GiB = 2**30
KNOWN = yaml.safe_load((Path(__file__).parents[2] / "data" / "oom.yaml").read_text())
TEXTS, FRAMES = KNOWN["messages"], KNOWN["frames"]
ASYNC, RICH, IPYTHON = TEXTS.pop("async"), FRAMES.pop("rich"), FRAMES.pop("ipython")
TWO_FIVE, OTHERS, OPTIMIZER = TEXTS["2.5"], TEXTS["others"], FRAMES["optimizer"]
LLAMA = published_model("meta-llama/Llama-3.1-8B").config


@cache
def shape_of_text(text):
    return shape_of_config(json.loads(text))


def shape_of(config):
    """Return a config's shape in this process, once."""
    return shape_of_text(json.dumps(config))


def setup(**changes):
    values = {"format": "hugging_face", "framework": "", "config": LLAMA, "seq_len": 8192, "sharing": "fsdp2",
              "zero": 3, "dp": 8, "optimizer_impl": "foreach", **changes}  # fmt: skip
    return question_of(**values)


def printed(size_B):
    """Print bytes as c10's format_size does for the segment that the allocator asks for."""
    asked = (
        2 * 2**20 if size_B <= 2**20 else 20 * 2**20 if size_B < 10 * 2**20 else -(-size_B // 2**21) * 2**21
    )
    for unit, name in ((2**30, "GiB"), (2**20, "MiB")):
        if asked > unit or name == "MiB":
            return f"{asked / unit:.2f} {name}"
    raise AssertionError


@pytest.mark.parametrize("version", TEXTS)
def test_every_version_is_read(version):
    (message,) = messages_in(TEXTS[version].format(asked="3.91 GiB"))
    assert pytest.approx(3.91 * GiB) == message.asked.B
    assert pytest.approx(1.5 * GiB) == message.free.B
    assert message.unallocated_B == pytest.approx(6.25 * GiB)
    assert message.backend == {"rocm": "HIP", "xpu": "XPU"}.get(version, "CUDA")


def test_what_other_processes_have_is_read():
    assert messages_in(OTHERS.format(asked="2.00 GiB"))[0].others_B == pytest.approx(20 * GiB)
    assert messages_in(TWO_FIVE.format(asked="2.00 GiB"))[0].others_B is None


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [("[rank5]: ", 5), ("Rank 12: ", 12), ("7: ", 7), ("", None), ("[rank2]: x\n[rank6]: ", 6)],
)
def test_the_rank_is_read(prefix, rank):
    text = prefix + TEXTS["2.1"].format(asked="2.00 GiB")
    assert messages_in(text)[0].rank == rank


def test_several_messages_are_told_apart():
    text = "\n".join(TWO_FIVE.replace("rank3", f"rank{n}").format(asked="2.00 GiB") for n in range(8))
    found = messages_in(text)
    assert [one.rank for one in found] == list(range(8))


@settings(max_examples=200, deadline=None)
@given(data=st.data())
def test_the_tensor_that_was_asked_for_is_among_those_named(data):
    """Each tensor of a step, printed as the allocator prints it, is found again by its size."""
    name = data.draw(
        st.sampled_from(
            ["llama-3.1-8b", "qwen2.5-0.5b", "mixtral-8x7b", "gpt2", "deepseek-v3", "qwen3-30b-a3b"]
        )
    )
    of = setup(
        config=published_model(name).config,
        seq_len=data.draw(st.sampled_from([1024, 4096, 8192])),
        micro_batch_size=data.draw(st.integers(1, 4)),
        tp=data.draw(st.sampled_from([1, 2])),
        dp=data.draw(st.sampled_from([2, 8, 64])),
    )
    tensor = data.draw(st.sampled_from(list(step_tensors(of, shape_of(of.config)))))
    found = read_oom(TWO_FIVE.format(asked=printed(tensor.size_B)), of, shape_of).tensors
    assert tensor.name in [one.name for one in found]


@pytest.mark.parametrize(("size_B", "least", "most"), [(1000, 1, 2**20), (5 * 2**20, 2**20, 20 * 2**20)])
def test_small_requests_ask_for_a_segment_of_their_pool(size_B, least, most):
    message = messages_in(TWO_FIVE.format(asked=printed(size_B)))[0]
    assert message.tensor_B == (least, most)


def test_the_logits_of_a_large_vocabulary_are_named():
    """8,192 tokens × 128,256 × 4 B = 4,202,692,608 B, which torch prints as 3.91 GiB."""
    found = read_oom(TWO_FIVE.format(asked="3.91 GiB"), setup(), shape_of)
    assert found.tensors[0].kind == "logits"
    assert found.tensors[0].size_B == 8192 * 128256 * 4
    assert "fused" in found.remedies[1].change


def test_adams_temporary_of_a_flat_shard_is_named():
    """DeepSpeed keeps one flat group: foreach's temporary has 4 B for each of P / 8 parameters."""
    of = setup(sharing="zero", zero=1)
    size_B = 4 * shape_of(LLAMA).parameters // 8
    found = read_oom(OPTIMIZER + TWO_FIVE.format(asked=printed(size_B)), of, shape_of)
    assert found.where.phase == "optimizer"
    assert found.tensors[0].kind == "optimizer"
    assert found.tensors[0].size_B == pytest.approx(size_B, abs=8)
    assert "fused AdamW" in found.remedies[1].change


def test_a_sub_group_of_zero_3_is_named():
    """1e9 parameters in fp32 are 3.73 GiB, whatever the model is; 70 B over 8 ranks have 9 of them each."""
    of = setup(config=published_model("llama-2-70b").config, sharing="zero", zero=3)
    found = read_oom(OPTIMIZER + TWO_FIVE.format(asked="3.73 GiB"), of, shape_of)
    assert "sub-group" in found.tensors[0].name
    assert found.tensors[0].size_B == 4_000_000_000


def test_the_mask_of_a_long_sequence_is_named():
    """65,536² elements of 2 B are 8 GiB."""
    found = read_oom(TWO_FIVE.format(asked="8.00 GiB"), setup(seq_len=65536), shape_of)
    assert "the attention mask in bf16" in [one.name for one in found.tensors]


EXPERTS = {
    "deepseek-v3": ("one matrix of a layer's experts", 256 * 7168 * 2048),
    "qwen3-30b-a3b": ("gate and up of a layer's experts", 128 * 2 * 2048 * 768),
    "mixtral-8x7b": ("one matrix of a layer's experts", 8 * 4096 * 14336),
}


@pytest.mark.parametrize("name", EXPERTS)
def test_the_stacked_matrices_of_experts_are_named(name):
    """transformers keeps a layer's experts in one tensor each for gate and up, and for down."""
    part, elements = EXPERTS[name]
    of = setup(config=published_model(name).config, zero=0)
    found = read_oom(TWO_FIVE.format(asked=printed(2 * elements)), of, shape_of).tensors
    assert any(part in one.name and one.size_B == 2 * elements for one in found)


def test_a_model_without_a_shape_is_named_in_one_line():
    of = setup(config={"model_type": "mamba", "num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 320})

    def none(config):
        raise ValueError(f"model_type {config['model_type']!r}: no")

    found = read_oom(TWO_FIVE.format(asked="3.91 GiB"), of, none)
    assert (found.tensors, found.missing) == ((), "model_type 'mamba': no")


def test_the_asynchronous_allocator_prints_the_tensor_itself():
    message = messages_in(ASYNC)[0]
    assert message.backend == "CUDA"
    assert message.tensor_B == pytest.approx((3.91 * GiB, 3.91 * GiB), rel=2e-3)
    assert read_oom(ASYNC, setup(), shape_of).tensors[0].size_B == 8192 * 128256 * 4


def test_memory_that_the_driver_does_not_know_is_not_taken_for_a_size():
    """On WSL drivers give 2^64 - 1 bytes for a process."""
    unknown = f"{2**64 / GiB:.2f} GiB"
    text = OTHERS.format(asked="2.00 GiB").replace("20.00 GiB", unknown).replace("77.70 GiB", unknown)
    message = messages_in(text)[0]
    assert message.others_B is None
    assert not any("other processes" in one.change for one in read_oom(text).remedies)


@pytest.mark.parametrize(
    ("asked", "verdict"), [("2.00 GiB", "yes"), ("7.00 GiB", "partly"), ("20.00 GiB", "no")]
)
def test_fragmentation_is_judged_by_what_torch_holds_unused(asked, verdict):
    found = read_oom(TWO_FIVE.format(asked=asked))
    assert found.message.fragmentation == verdict
    assert ("expandable_segments" in " ".join(one.change for one in found.remedies)) == (verdict != "no")


def test_remedies_leave_out_what_the_setup_has():
    plain = read_oom(TWO_FIVE.format(asked="3.91 GiB"), setup(), shape_of).remedies
    fused = read_oom(TWO_FIVE.format(asked="3.91 GiB"), setup(fused_loss=True), shape_of).remedies
    assert {one.change for one in plain} > {one.change for one in fused}


@pytest.mark.parametrize("half", KNOWN["half"], ids=lambda half: half["says"])
def test_half_a_message_is_one_line_that_says_what_is_missing(half):
    refused(lambda: read_oom(half["text"]), half["says"])


def test_without_a_setup_the_answer_says_what_is_missing():
    found = read_oom(TWO_FIVE.format(asked="3.91 GiB"))
    assert not found.tensors
    assert "config=" in found.missing
    nothing = read_oom(TWO_FIVE.format(asked=printed(math.prod((1000, 77777, 13)))), setup(), shape_of)
    assert not nothing.tensors
    assert "no tensor" in nothing.missing


@pytest.mark.parametrize("phase", FRAMES)
@pytest.mark.parametrize("prefix", ["", "[rank2]: "])
def test_the_phase_is_read_from_the_traceback(phase, prefix):
    text = "".join(prefix + line + "\n" for line in FRAMES[phase].splitlines())
    assert where_of(text).phase == phase


def test_a_recomputed_forward_is_backward_and_says_so():
    text = (
        '  File "/x/t.py", line 3, in f\n    loss.backward()\n'
        '  File "/x/torch/autograd/graph.py", line 9, in _engine_run_backward\n    return run_backward(\n'
        '  File "/x/torch/utils/checkpoint.py", line 9, in recompute_fn\n    fn(*args)\n' + FRAMES["forward"]
    )
    where = where_of(text)
    assert (where.phase, where.recomputed, where.operation) == ("backward", True, "MLP")


@pytest.mark.parametrize(("text", "phase", "line", "place"), [
    (RICH, "optimizer", "denom = torch._foreach_add(exp_avg_sq_sqrt, eps)", "adamw.py:566"),
    (IPYTHON, "loss", "logits = self.lm_head(x)", "modeling_llama.py:324"),
    ("no traceback", "", "", ""),
])  # fmt: skip
def test_tracebacks_of_rich_and_ipython_are_read(text, phase, line, place):
    where = where_of(text)
    assert (where.phase, where.line, where.place) == (phase, line, place)


def test_a_frame_without_code_does_not_take_the_error_for_it():
    text = '  File "/x/torch/optim/adamw.py", line 188, in step\ntorch.cuda.OutOfMemoryError: CUDA'
    where = where_of(text)
    assert (where.phase, where.line, where.place) == ("optimizer", "", "adamw.py:188")


def test_only_the_frames_of_the_messages_rank_count():
    other = "".join(f"[rank1]: {line}\n" for line in FRAMES["forward"].splitlines())
    own = "".join(f"[rank3]: {line}\n" for line in FRAMES["loss"].splitlines())
    found = read_oom(
        own.splitlines()[0] + "\n" + other + own + TWO_FIVE.format(asked="2.00 GiB") + "\n" + other
    )
    assert (found.message.rank, found.where.phase) == (3, "loss")
