"""What communicates: by the kernel's name, arguments, annotations, operators and patterns; on any device."""

import numpy as np
import pytest
from kineto_traces import Writer

from harness.instruments.traces.activity import Activity
from harness.instruments.traces.breakdown import breakdown
from harness.instruments.traces.communication import HOW, KernelRole, recognized
from harness.instruments.traces.kineto import read_trace
from harness.instruments.traces.segments import State

NAMES = {
    KernelRole.COMMUNICATES: """
        _Z21ncclDevKernel_Generic24ncclDevKernelArgsStorageILm4096EE
        rcclGenericKernel_7(ncclDevComm*)
        void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*, bool const*)
        _ZN7deep_ep9internode8dispatchILb0ELi8ELb0EEEvP4int4Pf
        mori::moe::EpDispatchIntraNodeKernel
        nvshmemi_transfer_rma_nbi_kernel(void*)
        mnnvl_two_step
        mscclKernel_Sum_half_SimpleLL
        _ZTSN3ccl15allreduce_kernelE
        _ZN12tensorrt_llm7kernels22oneShotAllReduceKernelI6__halfLi8ELb1EEEvNS0_15AllReduceParamsE
        void multimem_all_reduce_kernel<c10::BFloat16>(c10::BFloat16*)
        put_signal_kernel(unsigned int**, int)
        triton_symm_mem_all_gather_push_kernel
        userbuffers_fp16_sum_inplace_gpu_rr_rs(int)
        moeA2ADispatchKernel
        void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)
        void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<4>>, __half>(int)
        oneshotallreduce_kernel
    """,
    KernelRole.BOTH: """
        void flashinfer::allreduce_fusion_kernel_oneshot_lamport<flashinfer::kARResidualRMSNorm, half>(int)
        void cutlass::device_kernel<bytedance::flux::Sm90GemmReduceScatter<cute::tuple<int>>>(Params)
        kernel_gemm_rs_producer_persistent
        one_shot_all_reduce_rmsnorm_kernel
        GemmRSKernel
    """,
    KernelRole.COMPUTES: """
        void at::native::reduce_kernel<512, 1, at::native::ReduceOp<at::native::MeanOps<float, float>>>(X)
        void cub::CUB_200200_800_NS::DeviceReduceSingleTileKernel<X>(x)
        triton_poi_fused_all_gather_into_tensor_wait_tensor_0
        void flash::flash_fwd_splitkv_combine_kernel<X>(Y)
        block_all_reduce_sum_f32_f32_kernel
        void cutlass::device_kernel<flash::FlashAttnBwd<flash::CollectiveMainloopBwd<2>>>(P)
        void dpsk::grouped_gemm::cuda::fp8_kernel(int)
        moe_combine_kernel
        void (anonymous namespace)::groupnorm_kernel_dispatch_down<__hip_bfloat16, 1024u>(x)
        _finalize_matmul_scatter_bf16
    """,
}
KNOWN = [(line.strip(), role) for role, lines in NAMES.items() for line in lines.strip().splitlines()]


@pytest.mark.parametrize(("name", "role"), KNOWN, ids=[name[:60] for name, _ in KNOWN])
def test_a_kernel_has_the_role_that_its_name_shows(name, role):
    assert recognized(name).role == role


DEVICES = {
    "hip": ("hip_runtime", "kernel", "gpu_memcpy", "ncclDevKernel_Generic"),
    "privateuse1": ("privateuse1_driver", "privateuse1_kernel", "privateuse1_memcpy", "cnclAllReduce"),
    "mtia": ("mtia_runtime", "mtia_ccp_events", "mtia_ccp_events", "hccl_all_reduce"),
    "common names": ("runtime", "kernel", "memcpy", "ncclDevKernel_AllReduce"),
}


@pytest.mark.parametrize("device", DEVICES)
def test_devices_are_read_the_same(tmp_path, device):
    runtime, kernel, copy, collective = DEVICES[device]
    one = Writer()
    one.step(0, 0, 1_000)
    for number, name, category, start, end in (
        (1, "mm", kernel, 100, 400),
        (2, collective, kernel, 300, 600),
        (3, "dma_request" if device == "mtia" else "Memcpy HtoD", copy, 650, 700),
    ):
        one._add(runtime, "launch", 7, 100, start - 50, start - 45, {"correlation": number})
        args = {"device": 0, "stream": number, "correlation": number}
        one._add(category, name, 0, number, start, end, args)
    if device == "mtia":  # a wait on a stream is no work
        one._add("mtia_ccp_events", "event_wait", 0, 2, 700, 900, {"stream": 2})
    found = breakdown((read_trace(one.write(tmp_path)),))
    shares = {state.name: round(1000 * found.share_of(state)) for state in State if found.share_of(state)}
    working = {"COMPUTING": 300, "COMMUNICATION": 200, "COPYING": 50}
    assert shares == working | {"PREPARING": 50, "CALLING": 100, "IDLE": 300}


def recognized_by(path, *patterns):
    activity = Activity(read_trace(path), tuple(patterns))
    how = activity.on_device.recognized_by
    return {activity.trace.name(int(at)): HOW[how[at]] for at in np.flatnonzero(how)}


@pytest.fixture
def one():
    one = Writer()
    one.step(0, 0, 1_000)
    one.kernel("gemm", 100, 400, called=10)
    return one


def test_arguments_of_a_collective_name_a_kernel(tmp_path, one):
    one.kernel("xyz", 200, 300, called=20, stream=9, **{"Collective name": "all_to_allv"})
    one.kernel("zyx", 300, 400, called=30, stream=9, **{"In msg nelems": 7})
    one.kernel("group", 400, 500, called=40, stream=9, **{"Process Group Name": "tp"})
    one.kernel("two_shot_all_reduce_kernel", 500, 600, called=50, stream=9)
    path = one.write(tmp_path)
    by_arguments = dict.fromkeys(["xyz", "zyx", "group"], "arguments")
    assert recognized_by(path) == by_arguments | {"two_shot_all_reduce_kernel": "name"}
    activity = Activity(read_trace(path))
    named = [activity.collective(int(at)) for at in np.flatnonzero(activity.communication)]
    assert named == ["all_to_all", "collective", "collective of tp", "all_reduce"]


@pytest.mark.parametrize("operator", ["c10d::allreduce_", "record_param_comms", "nccl:all_reduce"])
def test_the_innermost_operator_names_a_kernel_and_no_copy_to_the_host(tmp_path, one, operator):
    one.host_event(operator, 20, 60, **{"External id": 77})
    one.kernel("custom", 200, 300, called=30, stream=9)
    one.kernel("Memcpy DtoH (Device -> Pinned)", 200, 300, called=35, category="gpu_memcpy")
    one.host_event("aten::fill_", 40, 50)
    one.kernel("fill", 300, 310, called=45, stream=9)
    one.kernel("after", 310, 320, called=70, stream=9)
    one.kernel("linked", 400, 450, stream=9, **{"External id": 77})
    one.kernel("another", 450, 480, stream=9, **{"External id": 78})
    one.kernel("old", 480, 500, stream=9, **{"External id": 77, "correlation": 77})
    assert recognized_by(one.write(tmp_path)) == {"custom": "operator", "linked": "operator"}


def test_patterns_of_the_user_add_kernels_and_one_without_effect_is_missing(tmp_path, one):
    one.kernel("my_push_kernel", 300, 600, called=20, stream=9)
    path = one.write(tmp_path)
    assert recognized_by(path) == {}
    assert recognized_by(path, "my_push") == {"my_push_kernel": "pattern"}
    found = breakdown((read_trace(path),), communication=["my_push", "absent"])
    assert found.share_of(State.COMPUTING) == pytest.approx(0.3)
    assert found.share_of(State.COMMUNICATION) == pytest.approx(0.2)
    assert ["communication=absent" in line for line in found.missing if "communication=" in line] == [True]


def test_an_annotation_of_the_device_names_what_it_encloses_on_its_stream(tmp_path, one):
    one._add("gpu_user_annotation", "nccl:all_reduce", 0, 9, 200, 300, {})
    one._add("gpu_user_annotation", "forward", 0, 9, 150, 450, {})
    one.kernel("inside", 210, 290, called=20, stream=9)
    one.kernel("after", 310, 390, called=30, stream=9)
    one.kernel("other stream", 210, 290, called=40, stream=11)
    assert recognized_by(one.write(tmp_path)) == {"inside": "annotation"}


def test_products_within_a_symmetric_memory_operator_compute_and_its_copies_communicate(tmp_path, one):
    one.host_event("symm_mem::fused_all_gather_matmul", 20, 90)
    one.host_event("aten::mm", 30, 40)
    one.kernel("product", 200, 300, called=35)
    one.host_event("aten::copy_", 50, 60)
    one.kernel("Memcpy DtoD (Device -> Device)", 210, 280, called=55, stream=9, category="gpu_memcpy")
    one.host_event("aten::copy_", 70, 80)
    one.kernel("copy_kernel", 280, 299, called=75, stream=9)
    one.kernel("Memcpy DtoD (Device -> Device) after", 500, 510, called=95, category="gpu_memcpy")
    found = recognized_by(one.write(tmp_path))
    assert found == dict.fromkeys(["Memcpy DtoD (Device -> Device)", "copy_kernel"], "operator")
