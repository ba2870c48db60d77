"""A set-up as techniques of `python -m harness list techniques`, as far as harness.fit dry-runs them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from harness.config.own_files.setup import OwnSetup

ListedTechnique = Mapping[str, Mapping[str, Any]]


class FitQuestion(NamedTuple):
    """What harness.fit can be asked for a set-up, and what of it that leaves out."""

    techniques: tuple[ListedTechnique, ...]
    optimizer: str
    devices: int
    seq_len: int | None
    micro_batch_size: int
    left_out: tuple[str, ...]  # of the set-up, in words; empty: the answer is for all of it


def fit_question(setup: OwnSetup, devices: int | None = None) -> FitQuestion:
    """Return the techniques of a set-up without layouts of tensor, pipeline, context or expert parallelism.

    Raises ValueError with one line where the set-up has such a layout, which the account of layouts answers,
    or where the number of devices is not known or does not divide.
    """
    sizes = {"tp": setup.tp, "pp": setup.pp, "cp": setup.cp, "ep": setup.ep}
    split = {name: size for name, size in sizes.items() if size > 1}
    if split:
        words = " × ".join(f"{name} {size}" for name, size in split.items())
        raise ValueError(f"{setup.format}: {words} is a layout, not a list of techniques; ask with layout=")
    ranks = setup.dp_of(devices)
    left_out: list[str] = []
    techniques = [
        *_sharing(setup, ranks, left_out),
        *_step(setup, left_out),
        *_micro_batches(setup, devices, left_out),
    ]
    return FitQuestion(
        tuple(techniques), setup.optimizer, ranks, setup.seq_len, setup.micro_batch_size, tuple(left_out)
    )


def _sharing(setup: OwnSetup, ranks: int, left_out: list[str]) -> list[ListedTechnique]:
    if setup.adapters is not None and setup.adapters.base in ("nf4", "int8") and setup.engine != "ddp":
        if setup.zero == 3:
            left_out.append(f"{setup.engine} of a quantized base, which is taken as a full copy per rank")
        return [{"ddp": {}}] if ranks > 1 else []
    if setup.engine == "zero":
        return [{"zero": _zero(setup)}] if ranks > 1 or setup.offload else []
    if setup.engine in ("megatron", "nanotron") and setup.zero:
        left_out.append(f"{setup.engine}'s own sharding of states, taken as deepspeed's zero {setup.zero}")
        return [{"zero": {"stage": setup.zero}}] if ranks > 1 else []
    if setup.engine not in ("fsdp1", "fsdp2"):
        return [{"ddp": {}}] if ranks > 1 else []
    if ranks == 1 and not setup.offload:
        return []
    if setup.engine == "fsdp1" and setup.adapters is not None:
        left_out.append("FSDP1's flat parameters, taken as FSDP2's, which adapters combine with")
    elif setup.engine == "fsdp1":
        if "parameters" in setup.offload:
            left_out.append("FSDP1's offload")
        return [{"fsdp1": {"strategy": "full_shard" if setup.zero == 3 else "shard_grad_op"}}]
    settings: dict[str, Any] = {}
    if setup.zero == 2:
        settings["reshard_after_forward"] = False
    if setup.replicas > 1:
        settings["shard_within"] = ranks // setup.replicas
    if "parameters" in setup.offload:
        settings["cpu_offload"] = True
    return [{"fsdp2": settings}]


def _zero(setup: OwnSetup) -> dict[str, Any]:
    settings: dict[str, Any] = {"stage": setup.zero}
    for one in setup.offload:
        what, _, where = one.partition(":")
        if what != "activations":
            settings[what] = where or "host"
    return settings


def _step(setup: OwnSetup, left_out: list[str]) -> list[ListedTechnique]:
    found: list[ListedTechnique] = []
    if setup.states == "bf16":
        found.append({"bf16_states": {}})
    elif setup.precision != "fp32":
        found.append({"mixed_precision": {}})
    if setup.precision == "fp8":
        found.append({"float8": {}})
    elif setup.precision not in ("bf16", "fp16", "fp32"):
        left_out.append(f"products in {setup.precision}")
    if setup.attention == "flash":
        found.append({"attention": {}})
    if setup.recompute == "full":
        found.append({"activation_checkpointing": {"mode": "full", "every": setup.recompute_every}})
    elif setup.recompute == "selective":
        per_op = setup.engine in ("fsdp2", "ddp")
        found.append({"activation_checkpointing": {"mode": "per_op" if per_op else "selective"}})
    if "activations" in setup.offload and setup.recompute != "none":
        left_out.append("activations on the host, next to recomputation")
    elif "activations" in setup.offload:
        found.append({"activation_offload": {}})
    if setup.fused_loss:
        found.append({"loss": {"fused": True}})
    elif setup.loss_chunks > 1:
        found.append({"loss": {"chunks": setup.loss_chunks}})
    if setup.adapters is not None:
        found.append({"lora": _lora(setup, left_out)})
    if setup.compile:
        found.append({"compile": {}})
    if setup.optimizer_in_backward:
        found.append({"optimizer_in_backward": {}})
    if setup.optimizer_impl != "fused" and setup.optimizer == "adamw" and setup.engine != "zero":
        found.append({"optimizer": {"impl": setup.optimizer_impl}})
    return found


def _lora(setup: OwnSetup, left_out: list[str]) -> dict[str, Any]:
    adapters = setup.adapters
    assert adapters is not None
    settings: dict[str, Any] = {"rank": adapters.rank, "base": adapters.base, "adapter_dtype": "fp32"}
    if any(not one.isidentifier() for one in adapters.targets):
        left_out.append(f"adapters by a pattern, {' '.join(adapters.targets)}; every linear layer is taken")
    elif adapters.targets:
        settings["targets"] = list(adapters.targets)
    if adapters.dora:
        settings["dora"] = True
    return settings


STEADY = 2
"""Micro-batches of a step after which each further one takes what the last did, but for 512 B of its loss.

A dry run of more takes longer; tests/suites/training/dry_run/test_steady_micro_batches.py compares them."""


def _micro_batches(setup: OwnSetup, devices: int | None, left_out: list[str]) -> list[ListedTechnique]:
    steps = setup.micro_batches(devices)
    if steps > STEADY:
        left_out.append(f"micro-batches {STEADY + 1} to {steps} of a step, which take what the second does")
    steps = min(steps, STEADY)
    return [{"gradient_accumulation": {"steps": steps, "split": False}}] if steps > 1 else []
