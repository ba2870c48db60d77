"""Kernels are recognized by name: libraries in any build, collectives of any library, and nothing else."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.instruments.traces.communication import KernelRole, recognized, taken_apart

COMMUNICATES = """
ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)
ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)
ncclSymkDevKernel_AllReduce_AGxLL_R_sum(ncclSymkDevArgs)
_Z21ncclDevKernel_Generic24ncclDevKernelArgsStorageILm4096EE
rcclGenericKernel_7(ncclDevComm*)
void dpsk::ep::internode::combine<false, 8, __nv_bfloat16, 8, 2, 16, 24>(int4*, float*, bool const*)
void dpsk::ep::internode::cached_notify<false>(int, int)
void dpsk::ep::intranode::notify_dispatch<8>(int const*, int*)
void deep_ep::intranode::cached_notify_combine<8>(void**, int*)
void deep_ep::intranode::dispatch<(int)2, (int)768, (int)8192>(int4 *, float *)
void deep_ep::internode_ll::combine<true, false, 7168>(void*)
void deep_ep::internode::get_dispatch_layout<256, 32, 8>(long const*, int*)
_ZN7deep_ep9internode8dispatchILb0ELi8ELb0EEEvP4int4Pf
_ZN4dpsk2ep9intranode16notify_dispatchILi8EEEvPKi
void internode::dispatch<false>(int4*)
void primus_turbo::deep_ep::intranode::combine<8>(int)
uccl::internode_ll::dispatch
mori::moe::EpDispatchIntraNodeKernel
EpCombineInterNodeKernel
cached_notify_dispatch
nvshmemi_transfer_rma_nbi_kernel(void*)
rocshmem_put_kernel
void mscclpp_allreduce_kernel<__half>(void*)
mscclKernel_Sum_half_SimpleLL
oneccl_allreduce_small
_ZTSN3ccl15allreduce_kernelE
void multimem_all_reduce_kernel<c10::BFloat16>(c10::BFloat16*)
void (anonymous namespace)::two_shot_all_reduce_kernel_inplace<c10::BFloat16, 4>(c10::BFloat16**)
void <unnamed>::multimem_one_shot_all_reduce_kernel<c10::BFloat16>(c10::BFloat16*)
multimem_one_shot_reduce_kernel
void c10d::symmetric_memory::barrier_kernel(unsigned int**, int)
barrier_kernel(unsigned int**, int, int, int, unsigned long)
put_signal_kernel(unsigned int**, int)
stream_write_value32
two_shot_all_reduce_kernel
triton_symm_mem_all_gather_push_kernel
userbuffers_fp16_sum_inplace_gpu_rr_rs(int)
void transformer_engine::userbuffers_fp16_sum_inplace_gpu_mc_ag<2>(int)
kuserbuffers_pushsend(int*, int*, int4*, int4*, int)
void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<__nv_bfloat16, 2>(int)
void tensorrt_llm::kernels::twoShotAllReduceKernel<__half, 8, true>(tensorrt_llm::kernels::AllReduceParams)
_ZN12tensorrt_llm7kernels22oneShotAllReduceKernelI6__halfLi8ELb1EEEvNS0_15AllReduceParamsE
moeA2ADispatchKernel
void tensorrt_llm::kernels::moe_comm::moeAllToAllKernel<4>(int)
void vllm::cross_device_reduce_1stage<__nv_bfloat16, 8>(vllm::RankData*, vllm::RankSignals)
void aiter::cross_device_reduce_2stage<__hip_bfloat16, 8>(int)
void quickreduce::allreduce_prototype_twoshot<AllReduceTwoshot<__half, CodecQ4<__half,4>, true>, __half>(int)
all_to_all_vdev_2d
reduce_scatter_kernel
hcom_allReduce__123_0
oneshotallreduce_kernel
NvShmemPutKernel
RingAllReduceKernel
void fbgemm_gpu::one_shot_all_reduce<8, true>(int)
_ZN10fbgemm_gpu19one_shot_all_reduceILi8EEEvi
ub_allgather_kernel
kernel_dispatch_token_intra_node
"""

BOTH = """
void flashinfer::allreduce_fusion_kernel_oneshot_lamport<flashinfer::Pattern::kARResidualRMSNorm, half>(int)
void cutlass::device_kernel<bytedance::flux::Sm90GemmReduceScatter<cute::tuple<int>>>(Params)
void cutlass::device_kernel<cutlass::distributed::DistributedGemm<X, AllGather1D_TilingCD_RotatingA>>(P)
kernel_gemm_rs_producer_persistent
ag_gemm_kernel_persistent
gemm_allreduce
fused_gemm_all_reduce_kernel
matmul_reduce_scatter_kernel
one_shot_all_reduce_rmsnorm_kernel
lamport_style_one_shot_all_reduce_norm_kernel
userbuffers_fp16_sum_inplace_gpu_mc_rmsnorm_quant
nvshmem_gemm_kernel
void cutlass::Kernel2<bytedance::flux::Sm80AGGemmKernel<X>>(Params)
void bytedance::flux::AgScatterGroupGemm<X>(Params)
GemmRSKernel
"""

COMPUTES = """
void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float, float>>>(X)
void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)
void at::native::_scatter_gather_elementwise_kernel<128, 8>(int)
reduce_kernel
dispatch_index_put
vectorized_elementwise
moe_permute
combine_heads
DeviceReduce
void cub::CUB_200200_800_NS::DeviceReduceSingleTileKernel<X>(x)
triton_poi_fused_all_gather_into_tensor_wait_tensor_0
triton_red_fused__to_copy_all_reduce_native_layer_norm_1
void flash::flash_fwd_splitkv_combine_kernel<X>(Y)
block_all_reduce_sum_f32_f32_kernel
void blockAllReduce<float>(float*)
void vllm::moe::topkGatingSoftmax<8>(int)
scatter_reduce_kernel
void cutlass::device_kernel<GemmKernel>(Params)
void cutlass::device_kernel<flash::FlashAttnBwd<flash::CollectiveMainloopBwd<2>>>(P)
void cutlass::device_kernel<cutlass::gemm::GemmUniversal<cutlass::gemm::collective::CollectiveMma<X>>>(P)
smallreduce_kernel
overallReduceKernel
callReduce
void dpsk::grouped_gemm::cuda::fp8_kernel(int)
void cuda::reduce_fused_impl<__nv_bfloat16, false, false>(int4 const*)
broadcast_kernel
Cijk_Alik_Bljk_SB_Bias_AS_SAV_UserArgs_MT64x16x32
void reduce_bf16_cuda<2>(void*)
multi_tensor_apply_kernel
moe_combine_kernel
nvjet_tst_192x192_64x3_1x2_h_bz_coopB_NNN
shmem_reduce
common_kernel
void cublasLt::splitKreduce_kernel<32, 16, int>(x)
paged_attention_ll4mi_reduce_kernel
void (anonymous namespace)::groupnorm_kernel_dispatch_down<__hip_bfloat16, 1024u>(x)
_finalize_matmul_scatter_bf16
"""

KNOWN = [
    (name, role)
    for role, names in (
        (KernelRole.COMMUNICATES, COMMUNICATES),
        (KernelRole.BOTH, BOTH),
        (KernelRole.COMPUTES, COMPUTES),
    )
    for name in names.strip().splitlines()
]


@pytest.mark.parametrize(("name", "role"), KNOWN, ids=[name[:60] for name, _ in KNOWN])
def test_kernels_are_what_they_are(name, role):
    assert recognized(name).role == role


def mangled(parts):
    """Return a name as the Itanium ABI mangles it, with a template argument."""
    return "_ZN" + "".join(f"{len(part)}{part}" for part in parts) + "ILi8ELb1EEEvPi"


WORDS = st.from_regex(r"[a-z]{1,3}_v[0-9]{0,2}x", fullmatch=True)


@settings(deadline=None)
@given(
    st.lists(WORDS, max_size=3),
    st.sampled_from(["internode", "intranode", "internode_ll"]),
    st.sampled_from(["dispatch", "combine", "notify_dispatch", "cached_notify", "cached_notify_combine"]),
)
def test_deep_ep_is_recognized_in_any_namespace(before, layer, function):
    parts = [*before, layer, function]
    for name in (f"void {'::'.join(parts)}<8, true>(int*)", "::".join(parts), mangled(parts)):
        assert recognized(name).role == KernelRole.COMMUNICATES, name


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("void mm_vx::internode::dispatch<8, true>(int*)", KernelRole.COMMUNICATES),
        ("void fbgemm_gpu::all_reduce(int*)", KernelRole.COMMUNICATES),
        ("void flux::gemm_rs::run<int>(int*)", KernelRole.BOTH),
    ],
)
def test_the_namespace_of_a_product_does_not_make_a_collective_compute(name, role):
    assert recognized(name).role == role


@settings(deadline=None)
@given(st.text(max_size=80))
def test_any_name_is_taken_apart(name):
    parts = taken_apart(name)
    assert " " not in parts.function
    assert recognized(name).role in KernelRole


@settings(deadline=None)
@given(st.sampled_from(["all_reduce", "AllGather", "reduce_scatter"]), WORDS)
def test_what_pytorch_itself_computes_stays_computing(collective, word):
    name = f"void at::native::{word}_kernel<4, at::native::{collective}Functor<float>>(int)"
    assert recognized(name).role == KernelRole.COMPUTES


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("void deep_ep::internode::dispatch<false, 8>(int4*)", "deep_ep::internode::dispatch"),
        ("void (anonymous namespace)::f<a<b>, (int)8>(int)", "anonymous::f"),
        ("_ZN7deep_ep9internode8dispatchILb0EEEvP4int4", "deep_ep::internode::dispatch::int4"),
        ("std::enable_if<true, void>::type ns::g<3>(int)", "ns::g"),
        ("", ""),
    ],
)
def test_a_name_has_a_function(name, function):
    assert taken_apart(name).function == function
