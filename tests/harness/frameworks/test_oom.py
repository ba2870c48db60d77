"""Out-of-memory messages of several torch versions, the tensor that each asked for, and the place in a step.

tests/data/oom.yaml has the messages and the tracebacks; the numbers follow from shapes.
"""

import math
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
from suites.training.layouts.shape_of_config import shape_of_config as shape_of

GiB = 2**30
KNOWN = yaml.safe_load((Path(__file__).parents[2] / "data" / "oom.yaml").read_text())
TEXTS, FRAMES = KNOWN["messages"], KNOWN["frames"]
ASYNC, RICH, IPYTHON = TEXTS.pop("async"), FRAMES.pop("rich"), FRAMES.pop("ipython")
TWO_FIVE, OTHERS, OPTIMIZER = TEXTS["2.5"], TEXTS["others"], FRAMES["optimizer"]
PARAMETERS = 8_030_261_248


def setup(name="llama-3.1-8b", **changes):
    values = {"format": "hugging_face", "framework": "", "config": published_model(name).config,
              "seq_len": 8192, "sharing": "fsdp2", "zero": 3, "dp": 8, "optimizer_impl": "foreach",
              **changes}  # fmt: skip
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


def test_what_other_processes_have_is_read_where_the_driver_knows_it():
    """On WSL drivers give 2^64 - 1 bytes for a process."""
    unknown = f"{2**64 / GiB:.2f} GiB"
    text = OTHERS.format(asked="2.00 GiB")
    assert messages_in(text)[0].others_B == pytest.approx(20 * GiB)
    text = text.replace("20.00 GiB", unknown).replace("77.70 GiB", unknown)
    assert messages_in(text)[0].others_B is None


def test_each_message_has_its_rank():
    ranks = {"[rank5]: ": 5, "Rank 12: ": 12, "7: ": 7, "": None, "[rank2]: x\n[rank6]: ": 6}
    for prefix, rank in ranks.items():
        assert messages_in(prefix + TEXTS["2.1"].format(asked="2.00 GiB"))[0].rank == rank


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_the_tensor_that_was_asked_for_is_among_those_named(data):
    """Each tensor of a step, printed as the allocator prints it, is found again by its size."""
    names = ["llama-3.1-8b", "qwen2.5-0.5b", "mixtral-8x7b", "gpt2", "deepseek-v3", "qwen3-30b-a3b"]
    of = setup(
        data.draw(st.sampled_from(names)),
        seq_len=data.draw(st.sampled_from([1024, 4096, 8192])),
        micro_batch_size=data.draw(st.integers(1, 4)),
        tp=data.draw(st.sampled_from([1, 2])),
        dp=data.draw(st.sampled_from([2, 8, 64])),
    )
    tensor = data.draw(st.sampled_from(list(step_tensors(of, shape_of(of.config)))))
    found = read_oom(TWO_FIVE.format(asked=printed(tensor.size_B)), of, shape_of).tensors
    assert tensor.name in [one.name for one in found]


@pytest.mark.parametrize(
    ("of", "part", "size_B"),
    [
        ({}, "", 8192 * 128256 * 4),  # the logits in fp32
        ({"sharing": "zero", "zero": 1}, "", 4 * PARAMETERS // 8),  # foreach's temporary of a flat shard
        ({"name": "llama-2-70b", "sharing": "zero"}, "sub-group", 4_000_000_000),  # of 1e9 parameters
        ({"seq_len": 65536}, "the attention mask in bf16", 2 * 65536**2),
        ({"name": "deepseek-v3", "zero": 0}, "one matrix of a layer's experts", 2 * 256 * 7168 * 2048),
        ({"name": "qwen3-30b-a3b", "zero": 0}, "gate and up of a layer's", 2 * 128 * 2 * 2048 * 768),
    ],
)
def test_a_tensor_is_named_by_its_size_and_phase(of, part, size_B):
    frames = OPTIMIZER if of.get("sharing") == "zero" else ""
    found = read_oom(frames + TWO_FIVE.format(asked=printed(size_B)), setup(**of), shape_of)
    assert any(part in one.name and one.size_B == pytest.approx(size_B, abs=8) for one in found.tensors)
    if not part:
        assert found.tensors[0].size_B == pytest.approx(size_B, abs=8)
        assert found.tensors[0].kind == ("optimizer" if frames else "logits")
        assert ("fused AdamW" if frames else "fused") in found.remedies[1].change


def test_a_request_is_of_a_segment_of_its_pool_or_of_the_tensor_itself():
    for size_B, tensor_B in ((1000, (1, 2**20)), (5 * 2**20, (2**20, 20 * 2**20))):
        assert messages_in(TWO_FIVE.format(asked=printed(size_B)))[0].tensor_B == tensor_B
    (message,) = messages_in(ASYNC)  # of the asynchronous allocator
    assert message.tensor_B == pytest.approx((3.91 * GiB, 3.91 * GiB), rel=2e-3)
    assert read_oom(ASYNC, setup(), shape_of).tensors[0].size_B == 8192 * 128256 * 4


def test_fragmentation_is_judged_by_what_torch_holds_unused():
    for asked, verdict in {"2.00 GiB": "yes", "7.00 GiB": "partly", "20.00 GiB": "no"}.items():
        found = read_oom(TWO_FIVE.format(asked=asked))
        assert found.message.fragmentation == verdict


def test_half_a_message_is_one_line_that_says_what_is_missing():
    for half in KNOWN["half"]:
        refused(lambda text=half["text"]: read_oom(text), half["says"])


def test_without_a_setup_or_a_tensor_of_that_size_the_answer_says_what_is_missing():
    odd = printed(math.prod((1000, 77777, 13)))
    for asked, *setup_and_shape, missing in (("3.91 GiB", "config="), (odd, setup(), shape_of, "no tensor")):
        found = read_oom(TWO_FIVE.format(asked=asked), *setup_and_shape)
        assert not found.tensors
        assert missing in found.missing


@pytest.mark.parametrize("phase", FRAMES)
def test_the_phase_is_read_from_the_traceback(phase):
    for prefix in ("", "[rank2]: "):
        text = "".join(prefix + line + "\n" for line in FRAMES[phase].splitlines())
        assert where_of(text).phase == phase


RECOMPUTED = (
    '  File "/x/t.py", line 3, in f\n    loss.backward()\n'
    '  File "/x/torch/autograd/graph.py", line 9, in _engine_run_backward\n    return run_backward(\n'
    '  File "/x/torch/utils/checkpoint.py", line 9, in recompute_fn\n    fn(*args)\n' + FRAMES["forward"]
)
WITHOUT_CODE = '  File "/x/torch/optim/adamw.py", line 188, in step\ntorch.cuda.OutOfMemoryError: CUDA'


@pytest.mark.parametrize(("text", "phase", "line", "place"), [
    (RICH, "optimizer", "denom = torch._foreach_add(exp_avg_sq_sqrt, eps)", "adamw.py:566"),
    (IPYTHON, "loss", "logits = self.lm_head(x)", "modeling_llama.py:324"),
    (WITHOUT_CODE, "optimizer", "", "adamw.py:188"),
    ("no traceback", "", "", ""),
])  # fmt: skip
def test_tracebacks_of_other_forms_are_read(text, phase, line, place):
    recomputed = where_of(RECOMPUTED)
    assert (recomputed.phase, recomputed.recomputed, recomputed.operation) == ("backward", True, "MLP")
    where = where_of(text)
    assert (where.phase, where.line, where.place) == (phase, line, place)


def test_only_the_frames_of_the_messages_rank_count():
    other = "".join(f"[rank1]: {line}\n" for line in FRAMES["forward"].splitlines())
    own = "".join(f"[rank3]: {line}\n" for line in FRAMES["loss"].splitlines())
    message = TWO_FIVE.format(asked="2.00 GiB")
    found = read_oom(own.splitlines()[0] + "\n" + other + own + message + "\n" + other)
    assert (found.message.rank, found.where.phase) == (3, "loss")


def test_a_bucket_of_deepspeeds_has_the_size_of_the_question():
    config = {**published_model("llama-3-8b").config}
    for bucket, size, text in (
        (None, 500_000_000, "reduce_bucket_size 500,000,000 (deepspeed's default)"),
        (2 * 10**9, 2 * 10**9, "reduce_bucket_size 2,000,000,000"),
        (0, 4096**2, "reduce_bucket_size 16,777,216"),
    ):
        of = question_of(config=config, sharing="zero", zero=2, devices=8, seq_len=8, reduce_bucket=bucket)
        (one,) = (
            one for one in step_tensors(of, shape_of(config)) if one.name == "a bucket of gradients in bf16"
        )
        assert (one.size_B, one.formula) == (2 * size, f"2 B × {text}")
