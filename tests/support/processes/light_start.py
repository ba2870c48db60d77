"""Print what dry runs of small models show, as JSON, in a process that loads few modules or all of them.

python tests/support/processes/light_start.py lightly
"""

from __future__ import annotations

import json
import sys
from typing import Any

SIZES: dict[str, Any] = {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2}
SIZES |= {"hidden_size": 64, "intermediate_size": 96, "vocab_size": 500, "max_position_embeddings": 256}
SIZES |= {"tie_word_embeddings": False}
BATCH = {"seq_len": 48, "micro_batch_size": 2, "optimizer_impl": "fused", "max_grad_norm": 1.0}
PRECISION = ["mixed_precision", "attention"]
STEPS: dict[str, tuple[str, int, list[Any]]] = {
    "fsdp2": ("llama", 4, [*PRECISION, "fsdp2", {"activation_checkpointing": {"mode": "per_op"}}]),
    "lora": ("mistral", 1, [*PRECISION, {"lora": {"rank": 4, "base": "nf4"}}]),
}
"""Model type, ranks and techniques: what torch wraps for its compiler, and what transformers does."""


def main(how: str) -> None:
    if how == "lightly":
        from harness.instruments.memory.dry_run.substitutes import defer_compiler
        from suites.training.models.light_transformers import import_lightly

        defer_compiler()
        import_lightly()
    else:
        __import__("torch._dynamo")
        __import__("transformers")
    from harness.instruments.memory.dry_run.substitutes import is_deferred
    from suites.training.dry_run.dry_run import Device, dry_run
    from suites.training.dry_run.live_tensors import live_tensors
    from suites.training.techniques import build_step

    shown = {}
    for name, (model_type, ranks, techniques) in STEPS.items():
        fields = {**SIZES, **BATCH, "dp_size": ranks, "hf_config": {"model_type": model_type, **SIZES}}
        run = dry_run(build_step(fields, techniques), Device("cuda"), make_first_step=True)
        assert run.timeline is not None
        labels = live_tensors(run.timeline, SIZES["vocab_size"], BATCH["seq_len"])
        events = [(one.storage, one.delta_B, str(one.place)) for one in run.timeline.events]
        shown[name] = [run.peak_B, run.reserved_B, run.by_kind_B, labels, events]
    loaded = [name for name in ("scipy", "transformers.models.bert") if name in sys.modules]
    print(json.dumps({"shown": shown, "loaded": loaded, "deferred": is_deferred()}))


if __name__ == "__main__":
    main(sys.argv[1])
