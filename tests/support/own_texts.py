"""Files of frameworks that several tests ask about: a dense model of 8 B parameters, tensor-parallel."""

MEGATRON = (
    "torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py --num-layers 32 --hidden-size 4096 "
    "--ffn-hidden-size 14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 "
    "--seq-length 4096 --max-position-embeddings 8192 --swiglu --untie-embeddings-and-output-weights "
    "--disable-bias-linear --normalization RMSNorm --position-embedding-type rope --micro-batch-size 2 "
    "--global-batch-size 256 --bf16 --use-distributed-optimizer --tensor-model-parallel-size 4 "
    "--pipeline-model-parallel-size 2 --num-layers-per-virtual-pipeline-stage 4 --vocab-size 128256 "
    "--recompute-activations --moe-expert-capacity-factor 1.0"
)
TITAN = """
[model]
name = "llama3"
flavor = "8B"
[training]
local_batch_size = 2
seq_len = 8192
[parallelism]
data_parallel_shard_degree = -1
tensor_parallel_degree = 2
[activation_checkpoint]
mode = "full"
"""
