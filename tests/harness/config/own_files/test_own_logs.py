"""Logs of each framework, written in its format with made-up numbers."""

import json

import pytest
from refusals import refused

from harness.config.own_files.logs.read import read_log
from harness.config.own_files.setup import OwnSetup

GiB = 2**30
STEPS = range(1, 41)


def slow_at_first(step, value):
    """Return a value of a step: the first five take twice as long."""
    return value * (2 if step <= 5 else 1)


def torchtitan(step):
    tps = 6000 / slow_at_first(step, 1)
    return (
        f"[rank0]:[titan] 2025-01-01 00:00:00,000 - root - INFO - \x1b[31mstep: {step:2}  "
        f"\x1b[32mloss: {7.5:8.5f}  "
        f"\x1b[38;2;180;60;0mgrad_norm: {1.25:7.4f}  \x1b[36mmemory: {51.5:5.2f}GiB(65.02%)  "
        f"\x1b[34mtps: {round(tps):,}  \x1b[36mtflops: {347.52:,.2f}  \x1b[35mmfu: {35.14:.2f}%\x1b[39m"
    )


def torchtitan_0_1(step):
    return (
        f"[titan] - root - INFO - step: {step:2}  loss: {7.5:7.4f}  memory: 51.50GiB(65.02%)  "
        "tps: 6,000  tflops: 347.52  mfu: 35.14%"
    )


def megatron(step):
    memory = (
        "[Rank 0] (after 1 iterations) memory (MB) | allocated: 10.00 | max allocated: "
        "40960.00 | reserved: 20.00 | max reserved: 45056.00\n"
    )
    line = (
        f" [2025-01-01 00:00:00] iteration {step:8d}/     500 | consumed samples: "
        f"{step * 512:12d} | elapsed time per "
        f"iteration (ms): {slow_at_first(step, 8500.0):.1f} | throughput per GPU "
        f"(TFLOP/s/GPU): 420.1 | learning rate: "
        "1.500000E-04 | global batch size:   512 | lm loss: 7.500000E+00 | loss scale: "
        "1.0 | grad norm: 1.250 |"
    )
    return (memory if step == 1 else "") + line


def hugging_face(step):
    return (
        f"{{'loss': 1.25, 'grad_norm': 0.5, 'learning_rate': 1e-05, 'epoch': 0.01}}\n 10%|█   "
        f"      | {step}/400 [00:08<12:00,  {slow_at_first(step, 4.0):.2f}s/it]"
    )


def deepspeed(step):
    return (
        f"[INFO] [timer.py:264:stop] epoch=0/micro_step={step}/global_step={step}, "
        f"RunningAvgSamplesPerSec=31.0, CurrSamplesPerSec={32.0 / slow_at_first(step, 1)}, "
        "MemAllocated=10.5GB, MaxMemAllocated=40.25GB"
    )


def deepspeed_pipeline(step):
    return f"steps: {step} loss: 7.5000 iter time (s): {slow_at_first(step, 2.0):0.3f} samples/sec: 16.000"


def llm_foundry(step):
    return (
        f"[batch={step}/4800]:\n\t Train time/batch: {step}\n\t Train loss/train/total: "
        f"7.5000\n\t Train memory/peak_reserved_mem: 50.0000\n"
        f"\t Train throughput/batches_per_sec: {0.25 / slow_at_first(step, 1):.4f}\n\t "
        f"Train throughput/tokens_per_sec: 80000.0000\n"
        "\t Train throughput/device/tokens_per_sec: 10000.0000\n\t Train "
        "throughput/device/flops_per_sec: 450000000000000.0000\n"
        "\t Train throughput/device/mfu: 0.4550"
    )


def nanotron(step):
    return (
        f"01/01/2025 00:00:00 [INFO|DP=0|PP=0|TP=0]: iteration: {step} / 500 | "
        f"consumed_tokens: 4.19M | time_per_iteration_ms: "
        f"{'16K' if step <= 5 else '8K'} | tokens_per_sec: 524K | tokens_per_sec_per_gpu: "
        f"8.19K | global_batch_size: 4.19M | "
        "lm_loss: 7.5 | lr: 0.0003 | model_tflops_per_gpu: 420 | eta: 1:00:00"
    )


def mlperf(step):
    def event(at, kind, key, value=None, **metadata):
        line = {
            "namespace": "",
            "time_ms": at,
            "event_type": kind,
            "key": key,
            "value": value,
            "metadata": metadata,
        }
        return f":::MLLOG {json.dumps(line)}"

    at, samples = step * 64000, (step - 1) * 512 * 8
    events = [event(1, "POINT_IN_TIME", "global_batch_size", 512)] if step == 1 else []
    events.append(event(at, "INTERVAL_START", "block_start", samples_count=samples))
    events.append(event(at + 64000, "INTERVAL_END", "block_stop", samples_count=samples + 512 * 8))
    return "\n".join(events)


def older_nanotron(step):
    return (
        f"10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0|ip-1-2-3-4]: iteration: {step} / 378950 | "
        "consumed_tokens: 85.8G | elapsed_time_per_iteration_ms: 8K | tokens_per_sec: 524K | "
        "tokens_per_sec_per_gpu: 8.19K | "
        "global_batch_size: 64 | lm_loss: 2.5 | lr: 1e-05 | model_tflops_per_gpu: 38.3 | grad_norm: 1.25 | "
        "cuda_memory_allocated: 75.2M | cuda_max_memory_reserved: 60.5G"
    )


def older_deepspeed(step):
    return (
        f"[2022-03-11 02:06:58,985] [INFO] [timer.py:189:stop] 0/{step}, SamplesPerSec={83.5}, "
        "MemAllocated=0.26GB, MaxMemAllocated=9.25GB"
    )


def megatron_bridge(step):
    return (
        "Step Time : 14.26s GPU utilization: 58.2TFLOP/s/GPU\n"
        f" [2025-10-02 22:52:07] iteration {step:8d}/      50 | consumed samples:         5120 |\n"
        "elapsed time per iteration (ms): 14260.0 | learning rate: 3.0E-04 | global batch\n"
        "size:   512 | lm loss: 4.5E+00 | loss scale: 1.0 | grad norm: 0.704 |"
    )


def nemo(step):
    return (
        f"Epoch 0: :   3%|▎         | {step}/301500 [1:42:42<55:37:46, v_num=0-56, reduced_train_loss=7.5, "
        f"global_step={step}.0, consumed_samples=6.3e+5, train_step_timing in s={slow_at_first(step, 0.625)}]"
    )


def torchtune(step):
    return (
        f"Step {step} | loss:1.25 lr:0.0003 tokens_per_second_per_gpu:1024.5 peak_memory_active:10.5 "
        "peak_memory_alloc:10.25 peak_memory_reserved:12.5 "
    )


def other_bars(step):
    """Print the Trainer's bar among those of a checkpoint, a dataset and an evaluation."""
    others = (
        f"Loading checkpoint shards: {step}%|██▌ | {step}/40 [00:08<00:08,  9.99s/it]\n"
        f"Map: 98%|█████████▊| 177000/180135 [00:48<00:00, 3628.29 examples/s]\n"
    )
    evaluation = f" 50%|█████     | {step}/7 [00:02<00:02,  8.00it/s]\n" if step <= 7 else ""
    return f"{others}{evaluation}stdout:  10%|█   | {step}/400 [00:08<12:00,  4.00s/it]"


EXPECTED = {
    torchtitan: (
        "torchtitan",
        {"tokens_per_s": 6000, "FLOP_per_s": 347.52e12, "mfu": 0.3514, "memory_B": 51.5 * GiB},
    ),
    torchtitan_0_1: ("torchtitan", {"tokens_per_s": 6000, "loss": 7.5}),
    megatron: (
        "megatron",
        {
            "step_s": 8.5,
            "FLOP_per_s": 420.1e12,
            "memory_B": 44 * GiB,
            "allocated_B": 40 * GiB,
            "global_batch_size": 512,
        },
    ),
    hugging_face: ("hugging_face", {"step_s": 4.0, "loss": 1.25}),
    deepspeed: ("deepspeed", {"samples_per_s_all": 32, "allocated_B": 40.25 * GiB}),
    deepspeed_pipeline: ("deepspeed", {"step_s": 2.0, "samples_per_s_all": 16}),
    llm_foundry: (
        "llm_foundry",
        {
            "step_s": 4.0,
            "tokens_per_s": 1e4,
            "tokens_per_s_all": 8e4,
            "FLOP_per_s": 450e12,
            "mfu": 0.455,
            "memory_B": 50e9,
        },
    ),
    nanotron: ("nanotron", {"step_s": 8.0, "tokens_per_s": 8190, "FLOP_per_s": 420e12}),
    mlperf: ("mlperf", {"step_s": 8.0, "samples_per_s_all": 64}),
    older_nanotron: ("nanotron", {"step_s": 8.0, "tokens_per_s": 8190, "memory_B": 60.5e9}),
    older_deepspeed: ("deepspeed", {"samples_per_s_all": 83.5, "allocated_B": 9.25 * GiB}),
    megatron_bridge: ("megatron", {"step_s": 14.26, "FLOP_per_s": 58.2e12, "global_batch_size": 512}),
    nemo: ("nemo", {"step_s": 0.625, "loss": 7.5}),
    torchtune: (
        "torchtune",
        {"tokens_per_s": 1024.5, "memory_B": 12.5 * GiB, "allocated_B": 10.25 * GiB, "loss": 1.25},
    ),
    other_bars: ("hugging_face", {"step_s": 4.0}),
}


@pytest.mark.parametrize("line", EXPECTED, ids=lambda line: line.__name__)
def test_each_log_gives_medians_of_its_steady_lines(line):
    framework, expected = EXPECTED[line]
    found = read_log("noise\n" + "\n".join(line(step) for step in STEPS) + "\nmore noise")
    assert found.framework == framework
    assert {metric: found.value(metric) for metric in expected} == pytest.approx(expected)
    assert found.left_out == 10


def test_quartiles_show_how_steady_it_was():
    found = read_log("\n".join(megatron(step).replace("8500", str(8000 + step * 10)) for step in STEPS))
    step_s = found.metrics["step_s"]
    assert step_s.low < step_s.median < step_s.high
    assert step_s.lines == 30


def test_the_end_of_trainers_log_is_read():
    text = (
        "{'train_runtime': 100.0, 'train_samples_per_second': 8.0, 'train_steps_per_second': "
        "0.25, 'train_loss': 1.0, 'epoch': 1.0}"
    )
    assert read_log(text).value("step_s") == 4.0


def test_seconds_follow_from_tokens_per_second_and_the_setup():
    """8 sequences of 8,192 tokens per step on 8 devices at 8,192 tokens/s per device take a second."""
    setup = OwnSetup(format="torchtitan", framework="", dp=8, seq_len=8192, gradient_accumulation_steps=1)
    found = read_log("\n".join(torchtitan(step).replace("6,000", "8,192") for step in STEPS), setup)
    assert found.value("step_s") == pytest.approx(1.0)


def test_tokens_follow_from_seconds_and_the_setup():
    setup = OwnSetup(format="megatron", framework="", dp=4, tp=8, global_batch_size=512, seq_len=4096)
    found = read_log("\n".join(megatron(step) for step in STEPS), setup)
    assert found.value("tokens_per_s") == pytest.approx(512 * 4096 / 8.5 / 32)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "it is empty"),
        ("epoch 1 of 3\nepoch 2 of 3", "its first line is 'epoch 1 of 3'"),
        ("x\ntorch.OutOfMemoryError: CUDA out of memory. Tried", "oom="),
    ],
)
def test_no_log_is_one_line_that_says_what_it_is(text, says):
    refused(lambda: read_log(text), says)
