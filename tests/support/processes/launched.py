"""What torchrun and srun leave in the environment of a rank, and a small step for such ranks."""

MEETING = {"MASTER_ADDR": "node1", "MASTER_PORT": "29500"}

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "16", "LOCAL_RANK": "3", "LOCAL_WORLD_SIZE": "8", **MEETING}
TORCHRUN |= {"TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "1"}
TORCHRUN |= {"TORCHELASTIC_USE_AGENT_STORE": "True"}

SRUN = {"SLURM_PROCID": "9", "SLURM_STEP_NUM_TASKS": "16", "SLURM_LOCALID": "1", **MEETING}
SRUN |= {"SLURM_STEP_NUM_NODES": "2", "SLURM_JOB_ID": "17", "SLURM_STEP_ID": "0"}

SMALL = {"num_hidden_layers": 1, "hidden_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
SMALL |= {"intermediate_size": 24, "vocab_size": 32, "micro_batch_size": 1, "seq_len": 32, "loss_steps": 8}
