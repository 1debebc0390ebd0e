"""Kernels: family and tensor cores by name, small ones, occupancy."""

from __future__ import annotations

import pytest
from simulated_traces import Simulated, cpu_training

from perfkit.trace import Kernels, kernels, load
from perfkit.trace.ask.kernels import family, uses_tensor_cores

_AT = "void at::native::"


@pytest.mark.parametrize(
    ("name", "kind", "tensor"),
    [
        ("nvjet_tst_128x256_64x4_1x2_h_bz_coopA_TNT", "matmul", True),
        ("nvjet_sm100_hsh_128x128_64x6_2x1_v_bz_TNT", "matmul", True),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize64x64x64_execute", "matmul", True),
        ("sm80_xmma_gemm_f32f32_f32f32_f32_nn_n_tilesize32x32x8_simt", "matmul", False),
        ("void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm_bf16_256x128>", "matmul", True),
        ("void cutlass::Kernel<cutlass_80_simt_sgemm_128x32_8x5_nn_align1>", "matmul", False),
        ("ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn", "matmul", True),
        ("volta_h884gemm_64x128_ldg8_nn", "matmul", True),
        ("turing_fp16_s1688gemm_fp16_128x128_ldg8_f2f_tn", "matmul", True),
        ("ampere_sgemm_128x64_tn", "matmul", False),
        ("sm70_xmma_gemm_f16f16_f16f16_f16_nn_n_tilesize128x128x8_ffma", "matmul", False),
        ("volta_sgemm_64x64_nt", "matmul", False),
        ("cutlass3x_sm90_tensorop_s64x256x16gemm_f16_warpspecialized", "matmul", True),
        ("sm90_16x8x16_hgmma_kernel_gemm", "matmul", True),
        ("turing_int8_i8816gemm_imma_128x128", "matmul", True),
        ("Cijk_Alik_Bljk_SB_MT64x16x32_MI16x16x1_SN_LDSB0", "matmul", True),
        ("Cijk_Ailk_Bljk_SB_MT32x32x8_SE_K1", "matmul", False),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>", "matmul", False),
        ("void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<64>>", "attention", True),
        ("fmha_cutlassF_bf16_aligned_64x64_rf_sm80(Params)", "attention", True),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16", "attention", True),
        ("sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwc", "convolution", True),
        ("void cudnn::cnn::wgrad_alg0_engine<float, 128, 6>", "convolution", False),
        ("volta_scudnn_128x64_relu_interior_nn_v1", "convolution", False),
        ("miopenSp3AsmConv_v21_1_2_gfx9_fp32", "convolution", False),
        ("void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float>", "normalization", False),
        (_AT + "vectorized_layer_norm_kernel<float>", "normalization", False),
        (_AT + "vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, "
         "std::array<char*, 3>>(int)::{lambda()#1}", "elementwise", False),
        (_AT + "reduce_kernel<512, 1, ReduceOp<float, sum_functor<float>>>::{lambda(float)#1}",
         "reduction", False),
        (_AT + "(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor>",
         "optimizer", False),
        ("void multi_tensor_apply_kernel<LAMBStage1Functor>", "optimizer", False),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage)", "communication",
         False),
        # collectives that are no NCCL: torch's symmetric memory, TensorRT-LLM, vLLM, AITER, DeepEP
        ("void (anonymous namespace)::multimem_all_reduce_kernel<float>", "communication", False),
        ("void (anonymous namespace)::two_shot_all_reduce_kernel<float>", "communication", False),
        ("void (anonymous namespace)::multimem_all_gather_kernel<16>", "communication", False),
        ("void tensorrt_llm::kernels::oneShotAllReduceKernel<half, 2>", "communication", False),
        ("void flashinfer::allreduce_fusion_kernel_oneshot_lamport<half>", "communication", False),
        ("void aiter::cross_device_reduce_1stage<float, 8>", "communication", False),
        ("void aiter::reduce_scatter_cross_device_store<float>", "communication", False),
        ("void quickreduce::allreduce_prototype_twoshot<4>", "communication", False),
        ("void deep_ep::intranode::dispatch<8>", "communication", False),
        # … and reductions within a block, which exchange nothing with other ranks
        ("void softmax::BlockAllReduceKernel<float>", "reduction", False),
        ("warp_all_reduce_kernel", "reduction", False),
        (_AT + "(anonymous namespace)::CatArrayBatchedCopy<float>", "memory", False),
        (_AT + "unrolled_elementwise_kernel<direct_copy_kernel_cuda>", "memory", False),
        ("triton_poi_fused_add_relu_0", "elementwise", False),
        ("triton_red_fused_sum_1", "reduction", False),
        ("my_kernel", "other", False),
    ],
)  # fmt: skip
def test_names_of_today_and_yesterday(name: str, kind: str, tensor: bool) -> None:
    assert family(name) == kind
    if kind in ("matmul", "convolution", "attention"):
        assert uses_tensor_cores(name) is tensor


def _simulated() -> Simulated:
    sim = Simulated()
    for i in range(2):
        sim.step(i, i * 1_000, 1_000)
        sim.device(
            "nvjet_tst", i * 1_000, 300, i * 10 + 1,
            **{"est. achieved occupancy %": 50, "blocks per SM": 2.0},
        )  # fmt: skip
        sim.device("ampere_sgemm_32x32", i * 1_000 + 300, 100, i * 10 + 2)
        sim.device(
            "void at::native::vectorized_elementwise_kernel<4>", i * 1_000 + 400, 4, i * 10 + 3,
            **{"est. achieved occupancy %": 100},
        )  # fmt: skip
    return sim


def _kernels(sim: Simulated) -> Kernels:
    return kernels(load(sim.json()))


@pytest.mark.parametrize(("blocks_per_sm", "occupancy"), [(0.5, 0.0), (1.0, None), (185.0, None)])
def test_a_kernel_that_fills_the_device_does_not_occupy_nothing(
    blocks_per_sm: float, occupancy: float | None
) -> None:
    """The profiler writes 0 where it cannot tell: 0 % of the time's occupancy was said."""
    sim = Simulated()
    sim.step(0, 0, 1_000)
    told = {"est. achieved occupancy %": 0, "blocks per SM": blocks_per_sm}
    sim.device("gemm", 100, 500, sim.call("cudaLaunchKernel", 10, 5), **told)
    found = kernels(load(sim.json()))
    assert (found.occupancy, found.kernels[0].occupancy) == (occupancy, occupancy)


def test_times_shares_and_occupancy() -> None:
    found = _kernels(_simulated())
    first = found.kernels[0]
    assert (first.name, first.count, first.total_us, first.mean_us) == ("nvjet_tst", 2, 600, 300)
    assert first.occupancy == pytest.approx(0.5)
    assert first.blocks_per_sm == pytest.approx(2)
    assert found.kernels[1].occupancy is None
    assert sum(k.share for k in found.kernels) == pytest.approx(1, abs=1e-9)
    assert sum(found.family_us.values()) == pytest.approx(found.total_us) == 808
    assert found.tensor_core_share == pytest.approx(0.75)
    assert found.small_count_share == pytest.approx(1 / 3)
    assert found.small_time_share == pytest.approx(8 / 808)
    assert found.occupancy == pytest.approx((600 * 0.5 + 8) / 608)
    assert found.per_step == 3


def test_small_is_a_kernel_that_ends_before_the_next_one_can_be_launched() -> None:
    """To launch one takes the host some 5 to 10 µs: half of these are shorter than 10 µs."""
    sim = Simulated()
    sim.step(0, 0, 1_000)
    for i, dur in enumerate((7, 9.5, 10.5, 15)):
        sim.kernel("aten::add", 10 * i, 100 + 20 * i, dur)
    assert _kernels(sim).small_count_share == 0.5


def test_no_matrix_work_has_no_tensor_core_share() -> None:
    sim = Simulated()
    sim.step(0, 0, 100)
    sim.device("void at::native::vectorized_elementwise_kernel<4>", 10, 4, 1)
    sim.device("triton_poi_fused_to_tf32_0", 20, 4, 2)
    found = _kernels(sim)
    assert found.tensor_core_share is None
    assert not any(one.tensor_cores for one in found.kernels)
    assert found.warnings == ()


def test_without_a_device_there_is_no_answer() -> None:
    found = _kernels(cpu_training(2))
    assert found.kernels == ()
    assert found.total_us == 0
    assert found.warnings == ("no kernel was recorded",)
    assert "not recorded" in str(found)
