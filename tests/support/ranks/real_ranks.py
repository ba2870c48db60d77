"""What tests of sharded steps share: workloads, real ranks joined by gloo, a dry run and a real one."""

import json
import os
from dataclasses import replace

import torch
import torch.distributed as dist
import torch.multiprocessing

from harness.instruments.distributed.fake_process_group import fake_process_group
from suites.memory.live_bytes import losses, measure_peak
from suites.training.dry_run.dry_run import Device, dry_run
from suites.training.techniques import build_step
from suites.training.workload import Workload

CPU = torch.device("cpu")
STEPS = 4

TINY = Workload(
    num_hidden_layers=2,
    hidden_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    intermediate_size=56,
    vocab_size=101,
    norm="rms",
    mlp="swiglu",
    position="rotary",
    max_position_embeddings=32,
    tie_word_embeddings=False,
    bias=False,
    micro_batch_size=2,
    seq_len=17,
    optimizer="sgd_momentum",  # AdamW would hide a gradient of the wrong scale
    optimizer_impl="for_loop",
    gradient_accumulation_steps=2,
    max_grad_norm=None,
    dropout=0.0,
    dp_size=2,
    tp_size=2,
)
GPT = replace(
    TINY,
    num_key_value_heads=4,
    norm="layer",
    mlp="gelu",
    position="learned",
    tie_word_embeddings=True,
    bias=True,
    optimizer="adamw",
    gradient_accumulation_steps=1,
    max_grad_norm=0.5,
)
"""The other architecture and set-up."""

CLIPPED = replace(TINY, max_grad_norm=0.05)
"""Less than the gradient's norm in each step, and by an optimizer that does not hide it."""

SMALL = replace(
    TINY,
    num_hidden_layers=3,
    hidden_size=128,
    intermediate_size=336,
    vocab_size=1000,
    seq_len=64,
    max_position_embeddings=64,
    optimizer="adamw",
)
"""Large enough that what a dry run misses shows as a share of the peak."""


HOST = Device("host", measured=True)

IMPORTED = ["deepspeed", "torch._dynamo", "torch.distributed.fsdp", "suites.memory.live_bytes"]
"""What all ranks import, once for all of them."""


def sharded(techniques, workload, seed=3):
    """Return the step of `workload` under a technique, or under several."""
    return build_step(workload, [techniques] if isinstance(techniques, str) else techniques, seed)


def dry_and_measured(step, full=True, steady_steps=1, rank=0):
    """Return the dry run's peak, and the bytes of real tensors in the last of those steps, of one rank."""
    dry = dry_run(step, HOST, full, rank=rank)
    with fake_process_group(step.ranks, rank):
        measured = measure_peak(step, CPU, steady_steps=steady_steps)
    return dry, measured.peaks[-1].live_B


def baseline_losses(workload):
    """Return the losses of plain PyTorch."""
    return losses(build_step(workload, (), seed=3), STEPS, CPU)


def losses_on_ranks(runs, folder):
    """Return, for each run (techniques, workload, ranks), the losses of each real rank.

    The ranks are started once, as many as a run needs at most, and do one run after the other.
    """
    torch.multiprocessing.set_forkserver_preload(IMPORTED)
    torch.multiprocessing.start_processes(
        _do, (runs, str(folder)), nprocs=max(ranks for *_, ranks in runs), start_method="forkserver"
    )
    return [
        [json.loads((folder / f"losses.{number}.{rank}").read_text()) for rank in range(ranks)]
        for number, (*_, ranks) in enumerate(runs)
    ]


def _do(rank, runs, folder):
    torch.set_num_threads(1)
    for number, (name, workload, ranks) in enumerate(runs):
        if rank < ranks:
            try:
                seen = _run(rank, name, workload, ranks, f"{folder}/store.{number}")
            except Exception as error:
                error.add_note(f"in run {number}: {name} on {ranks} ranks")
                raise
            with open(f"{folder}/losses.{number}.{rank}", "w") as file:
                json.dump(seen, file)
    os._exit(0)  # gloo's threads and the interpreter's end do not always get on: now and then one aborts


def _run(rank, name, workload, ranks, store):
    """Run in a process group of its own."""
    environment = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "GLOO_SOCKET_IFNAME": "lo"}
    os.environ.update({key: str(value) for key, value in environment.items()})
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    seen = losses(sharded(name, replace(workload, dp_size=ranks, tp_size=ranks)), STEPS, CPU)
    dist.barrier()
    dist.destroy_process_group()
    return seen
