"""In which phase of a training step a traceback ended, and at which line."""

from __future__ import annotations

import re
from typing import NamedTuple

FRAME = re.compile(
    r"""File "([^"]+)", line (\d+), in (\S+)"""
    r"""(?:\n(?!\s*(?:File "|Traceback|[\w.]*(?:Error|Exception)\b))\s*([^\n]+))?"""
)
PREFIX = re.compile(r"^\s*(?:\[rank\d+\]:|\d+:|\[?[Rr]ank ?\d+\]?:|\([^)]*pid=\d+[^)]*\))\s?", re.MULTILINE)

PHASES = (
    (
        "optimizer",
        r"torch/optim/|optimizer\.step|_multi_tensor_adam|exp_avg|_take_model_step|initialize_optimizer_states|"
        r"step_with_ready_grads|fused_adam|zero_grad",
    ),
    (
        "gather",
        r"all_gather|unshard|fetch_sub_module|partition_parameters|_alloc_padded|all_gather_coalesced|param_gather",
    ),
    (
        "reduce",
        r"reduce_scatter|post_backward|foreach_reduce|average_tensor|reduce_independent|reduce_ipg_grads|"
        r"_accumulate_sharded_grad",
    ),
    (
        "loss",
        r"cross_entropy|loss_function|log_softmax|lm_head|\blogits\b|output_layer|compute_log_probs|ForCausalLMLoss|"
        r"logprobs",
    ),
    (
        "load",
        r"from_pretrained|load_checkpoint|load_state_dict|_load_state|\.to\(device|\.cuda\(|_move_model|"
        r"DistributedDataParallel\(|_ddp_init|build_model|setup_model|initialize_model|prepare_model|"
        r"_configure_\w*optimizer|_configure_distributed_model",
    ),
    ("backward", r"run_backward|autograd\.backward|\.backward\(|backward_step|_engine_run_backward"),
    ("forward", r"\bforward\b|_call_impl|forward_step"),
)
"""Phases with what their frames look like; a traceback is of the first one that its frames have, from the
innermost frames outward for the first four."""

OPERATIONS = (
    (
        "attention scores",
        r"softmax|attn_weights|baddbmm|scaled_dot_product_attention_math|torch\.matmul\(query",
    ),
    ("MLP", r"\bmlp\b|up_proj|gate_proj|down_proj|act_fn|feed_forward|swiglu|linear_fc"),
    ("attention", r"self_attn|attention|q_proj|k_proj|v_proj|o_proj|linear_qkv"),
    ("norm", r"norm\b|rms_norm|layernorm"),
    ("embedding", r"embed_tokens|embedding"),
    ("experts", r"experts|grouped_mm|moe"),
)


class OomPlace(NamedTuple):
    """The place in a training step where a traceback ended."""

    phase: str  # optimizer, gather, reduce, loss, load, backward, forward, or "" where nothing shows it
    recomputed: bool  # within the recomputation of a layer
    operation: str  # attention scores, MLP, ... or ""
    line: str  # the innermost line of code that the traceback shows
    place: str  # its file and line number


def where_of(text: str) -> OomPlace:
    """Return where the traceback before an out-of-memory message ended; empty words where there is none."""
    frames = [tuple(part or "" for part in found) for found in FRAME.findall(PREFIX.sub("", text))]
    if not frames:
        return _of_code(text)
    inner = [" ".join((file, name, code)) for file, _, name, code in frames[-12:]]
    whole = "\n".join(inner)
    phase = _phase(inner)
    operation = next(
        (name for line in reversed(inner) for name, one in OPERATIONS if re.search(one, line)), ""
    )
    file, number, _, code = frames[-1]
    recomputed = bool(re.search(r"recompute|checkpoint\.py|unpack_hook", whole)) and bool(
        re.search(PHASES[5][1], "\n".join(" ".join(one) for one in frames))
    )
    return OomPlace(phase, recomputed, operation, code.strip(), f"{file.rsplit('/', 1)[-1]}:{number}")


CODE = re.compile(r"^[\s│|]*(?:❱|-+>)\s*(\d+)[\s│]+(.*?)[\s│]*$", re.MULTILINE)
"""The marked line of a frame as rich and IPython print it, with its number."""

HEAD = re.compile(r"^[\s│|]*(?:File )?(/[^\s:]+\.py)(?::(\d+))?,? in \S+", re.MULTILINE)
"""The first line of a frame as rich and IPython print it."""


def _of_code(text: str) -> OomPlace:
    """Return the place by a traceback of rich or IPython, which mark a line per frame."""
    marked = CODE.findall(text)
    if not marked:
        return OomPlace("", False, "", "", "")
    lines = text.splitlines()[-60:]
    heads = HEAD.findall(text)
    place = f"{heads[-1][0].rsplit('/', 1)[-1]}:{heads[-1][1] or marked[-1][0]}" if heads else ""
    return OomPlace(_phase(lines), False, "", marked[-1][1].strip(), place)


def _phase(inner: list[str]) -> str:
    """Return the phase: by the innermost frame that shows one of the special ones, else by any frame."""
    for line in reversed(inner):
        for name, pattern in PHASES[:4]:
            if re.search(pattern, line):
                return name
    whole = "\n".join(inner)
    return next((name for name, pattern in PHASES[4:] if re.search(pattern, whole)), "")
