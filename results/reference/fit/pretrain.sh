torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py \
  --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 \
  --group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear \
  --untie-embeddings-and-output-weights --position-embedding-type rope --vocab-size 128256 --make-vocab-size-divisible-by 1 \
  --seq-length 8192 --max-position-embeddings 8192 --micro-batch-size 1 --global-batch-size 256 \
  --tensor-model-parallel-size 2 --sequence-parallel --use-distributed-optimizer --use-flash-attn \
  --bf16 --overlap-grad-reduce --overlap-param-gather
