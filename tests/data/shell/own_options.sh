GPUS_PER_NODE=$(python -c 'import torch; print(torch.cuda.device_count())')
MODEL="Qwen/Qwen-7B" # a path, or a name
function usage() {
    echo '
Usage: bash finetune.sh [-m MODEL_PATH] [--deepspeed DS_CONFIG_PATH]
'
}
while [[ "$1" != "" ]]; do
    case $1 in
        -m | --model )
            shift
            MODEL=$1
            ;;
        --deepspeed )
            shift
            ;;
    esac
    shift
done
DISTRIBUTED_ARGS="
    --nproc_per_node $GPUS_PER_NODE \
    --nnodes ${NNODES:-1}
"
torchrun $DISTRIBUTED_ARGS finetune.py --model_name_or_path $MODEL --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 8 --q_lora --use_lora --model_max_length 512 $MORE 2>&1 | tee log.txt
