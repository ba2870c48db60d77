"""Files that are no framework's configuration here, recognised by keys that only they have."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

OTHER_TOOLS: Mapping[str, tuple[str, ...]] = {
    "EleutherAI's gpt-neox": ("pipe_parallel_size", "pipe-parallel-size"),
    "AMD's Primus": ("modules.pre_trainer.*", "modules.post_trainer.*"),
    "ms-swift": ("tuner_type", "train_type", "rlhf_type", "split_dataset_ratio"),
    "LitGPT": ("train.lr_warmup_steps", "train.max_seq_length"),
    "AI2's OLMo": ("model.mlp_ratio", "model.mlp_hidden_size"),
    "verl": ("actor_rollout_ref.*",),
    "OpenRLHF": ("micro_train_batch_size", "actor_num_gpus_per_node"),
    "MaxText": ("base_emb_dim", "ici_fsdp_parallelism"),
    "Levanter": ("trainer.train_batch_size",),
    "ColossalAI": ("booster_config", "plugin.type"),
    "flame": ("training.varlen", "training.skip_nan_inf"),
    "Kubernetes": ("apiVersion",),
    "CloudFormation": ("AWSTemplateFormatVersion",),
    "GitHub Actions": ("jobs.*.runs-on",),
}
"""Tools by keys of their files: their repositories' configurations, and the tools' own documentation."""

CONFIG_JSON = ("architectures", "model_type")
"""Keys of a model's config.json."""


def other_tool(keys: Iterable[str]) -> str:
    """Return in a few words which other file has such keys; "" where none is known."""
    listed = list(keys)
    if all(key in listed for key in CONFIG_JSON):
        return "it is a model's config.json; give it as model="
    for tool, patterns in OTHER_TOOLS.items():
        found = next((key for key in listed if any(fnmatchcase(key, one) for one in patterns)), None)
        if found is not None:
            return f"it is a file of {tool} ({found[:60]}), which is not read"
    return ""
