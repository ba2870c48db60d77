"""A config.json of a small model, for the commands that take one."""

from __future__ import annotations

import json
from pathlib import Path

CONFIG = {"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 160}
CONFIG |= {"num_attention_heads": 4, "num_key_value_heads": 4, "vocab_size": 4000}
CONFIG |= {"max_position_embeddings": 256, "tie_word_embeddings": False}


def config(folder: Path, **changes: object) -> str:
    path = folder / "small.json"
    path.write_text(json.dumps(CONFIG | changes))
    return str(path)
