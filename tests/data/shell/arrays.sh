case $1 in
    --quick | --q )
        ITERATIONS=10
        ;;
esac
MODEL=(
    --num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 128 --vocab-size 128 --swiglu
    --untie-embeddings-and-output-weights
)
TRAIN=(--micro-batch-size 1 --global-batch-size 8
    --bf16)
TRAIN+=(
    --use-distributed-optimizer # sharded
)
torchrun --nproc_per_node 8 pretrain_gpt.py ${MODEL[@]} "${TRAIN[@]}" --tensor-model-parallel-size 4 \
    $(echo) --sequence-parallel
