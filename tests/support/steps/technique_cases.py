"""Every technique with the settings in which tests try it alone."""

from suites.training import techniques

MODES = [{"mode": "selective"}, {"mode": "per_op"}]
SETTINGS = {
    "mixed_precision": [{}, {"gradients": "bf16"}, {"gradients": "fp32"}],
    "gradient_accumulation": [{"steps": 2}, {"steps": 4}, {"steps": 8}, {"steps": 2, "split": False}],
    "optimizer": [
        *({"impl": impl} for impl in ("foreach", "fused")),
        *({"name": name} for name in ("adafactor", "adamw_8bit", "muon")),
    ],
    "zero": [{"stage": 1}, {"stage": 2}, {"stage": 3}, {"stage": 3, "buckets": "block"}],
    "activation_checkpointing": [{}, *MODES, {"every": 2}, {"on_host": True}],
    "lora": [
        {},
        {"targets": ["query", "value"], "dropout": 0.1},
        {"base": "nf4"},
        {"base": "int8"},
        {"dora": True},
        {"dora": True, "base": "nf4"},
        {"base": "nf4", "ends": True, "rest": "fp32"},
        {"base": "nf4", "lightning": True},
    ],
    "llama_adapter": [{}, {"version": 2}, {"version": 2, "base": "nf4"}],
    "loss": [
        {},
        {"chunks": 5, "chunked": "loss"},
        {"chunks": 5},
        {"chunks": 5, "chunked": "recompute"},
        {"dtype": "bf16"},
        {"keep_logits": "model"},
        {"keep_logits": "fp32", "chunks": 2},
        {"fused": True},
        {"chunked": "in_place"},
    ],
    "pipeline": [{}, {"stages_per_rank": 2}],
    "fsdp1": [{}, {"strategy": "shard_grad_op"}, {"reduce_every_micro_batch": False}],
    "fsdp2": [
        {},
        {"reduce_dtype": "bf16"},
        {"cpu_offload": True},
        {"reduce_every_micro_batch": False},
        {"reshard_after_forward": False, "head": "apart"},
        {"keep_last_block": True},
    ],
}
"""More than the defaults; a technique that is not listed is tried with its own."""

ALONE = [(name, given) for name in techniques.names() for given in SETTINGS.get(name, [{}])]
"""Each technique with each of its settings."""
