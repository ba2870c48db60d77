"""The place in a step where a traceback ended: of Python, rich and IPython, of one rank among others."""

import pytest

from harness.config.own_files.oom.explain import read_oom
from harness.config.own_files.oom.phase import where_of

OPTIMIZER = """Traceback (most recent call last):
  File "/x/train.py", line 90, in main
    optimizer.step()
  File "/x/torch/optim/adamw.py", line 608, in _multi_tensor_adamw
    exp_avg_sq_sqrt = torch._foreach_sqrt(device_exp_avg_sqs)
"""
MESSAGE = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total"


FRAMES = {
    "optimizer": OPTIMIZER,
    "gather": '  File "/x/torch/distributed/fsdp/_fsdp_param_group.py", line 257, in wait_for_unshard\n'
    "    foreach_all_gather_copy_out(\n",
    "reduce": '  File "/x/t.py", line 3, in f\n    loss.backward()\n'
    '  File "/x/torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py", line 9, in '
    "foreach_reduce\n    reduce_scatter(\n",
    "loss": '  File "/x/torch/nn/functional.py", line 3059, in cross_entropy\n'
    "    return torch._C._nn.cross_entropy_loss(\n",
    "load": '  File "/x/t.py", line 3, in f\n    model = AutoModelForCausalLM.from_pretrained(name)\n',
    "backward": '  File "/x/torch/autograd/__init__.py", line 9, in backward\n    _engine_run_backward(\n',
    "forward": '  File "/x/modeling_llama.py", line 240, in forward\n'
    "    down_proj = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))\n",
}


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


RICH = """
│ /x/torch/optim/adamw.py:566 in _multi_tensor_adamw │
│   565 │   │   │   torch._foreach_div_(exp_avg_sq_sqrt, bias)   │
│ ❱ 566 │   │   │   denom = torch._foreach_add(exp_avg_sq_sqrt, eps)   │
"""
IPYTHON = """
/x/transformers/models/llama/modeling_llama.py in forward(self, x)
    323             x = self.norm(x)
--> 324             logits = self.lm_head(x)
"""


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
    found = read_oom(own.splitlines()[0] + "\n" + other + own + MESSAGE + "\n" + other)
    assert (found.message.rank, found.where.phase) == (3, "loss")
