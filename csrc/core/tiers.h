// The tiers of instruction sets that the core is built for.
#pragma once

#if defined(__x86_64__)
#define DECODESTEP_X86 1
#elif defined(__aarch64__)
#define DECODESTEP_ARM 1
#endif
#if defined(DECODESTEP_X86) && !defined(DECODESTEP_WITHOUT_AVX512)
#define DECODESTEP_HAS_AVX512 1
#endif

// The tiers, from the least to the best, each with the build of a kernel that runs on it: X(tier, build, ...) for each.
// A tier is what a CPU has, core/isa.cpp says how that is seen. A build is a namespace, and a set of flags in
// CMakeLists.txt; csrc/simd has its vectors. A kernel is built where it gains by what a tier adds: to the vectors of
// avx2, avx512 and neon avx2_vnni, avx512_vnni, neon_dotprod and neon_i8mm add products of bytes, avx512_bf16 adds
// products of bfloat16 and compression of bytes, and avx512_amx tiles of integers. The arguments are the builds of a
// kernel that serve those tiers: lists of them follow, by what kernels gain by.
//
// Processors with tiles of integers take two cycles for sixteen pairs of bfloat16, in which they do four fused
// multiply-adds of as many floats: so kernels that gain by products of bfloat16 alone have another build there, with
// the same bits.
//
// A build without AVX-512 (DECODESTEP_AVX512 in CMakeLists.txt) takes half the time.
#if defined(DECODESTEP_HAS_AVX512)
#define DECODESTEP_TIERS(X, on_avx2_vnni, on_avx512_vnni, on_avx512_bf16, on_avx512_amx, ...) \
    X(baseline, baseline __VA_OPT__(, ) __VA_ARGS__)                                          \
    X(avx2, avx2 __VA_OPT__(, ) __VA_ARGS__)                                                  \
    X(avx2_vnni, on_avx2_vnni __VA_OPT__(, ) __VA_ARGS__)                                     \
    X(avx512, avx512 __VA_OPT__(, ) __VA_ARGS__)                                              \
    X(avx512_vnni, on_avx512_vnni __VA_OPT__(, ) __VA_ARGS__)                                 \
    X(avx512_bf16, on_avx512_bf16 __VA_OPT__(, ) __VA_ARGS__)                                 \
    X(avx512_amx, on_avx512_amx __VA_OPT__(, ) __VA_ARGS__)
#elif defined(DECODESTEP_X86)
#define DECODESTEP_TIERS(X, on_avx2_vnni, on_avx512_vnni, on_avx512_bf16, on_avx512_amx, ...) \
    X(baseline, baseline __VA_OPT__(, ) __VA_ARGS__)                                          \
    X(avx2, avx2 __VA_OPT__(, ) __VA_ARGS__)                                                  \
    X(avx2_vnni, on_avx2_vnni __VA_OPT__(, ) __VA_ARGS__)
#elif defined(DECODESTEP_ARM)
#define DECODESTEP_TIERS(X, on_neon_dotprod, on_neon_i8mm, ...) \
    X(baseline, baseline __VA_OPT__(, ) __VA_ARGS__)            \
    X(neon, neon __VA_OPT__(, ) __VA_ARGS__)                    \
    X(neon_dotprod, on_neon_dotprod __VA_OPT__(, ) __VA_ARGS__) \
    X(neon_i8mm, on_neon_i8mm __VA_OPT__(, ) __VA_ARGS__)
#else
#define DECODESTEP_TIERS(X, on_baseline, ...) X(baseline, on_baseline __VA_OPT__(, ) __VA_ARGS__)
#endif

#if defined(DECODESTEP_X86)
#define DECODESTEP_ALL_BUILDS avx2_vnni, avx512_vnni, avx512_bf16, avx512_bf16
#define DECODESTEP_VECTOR_BUILDS avx2, avx512, avx512, avx512
#define DECODESTEP_BYTE_BUILDS avx2_vnni, avx512_vnni, avx512_vnni, avx512_vnni
#define DECODESTEP_TILE_BUILDS avx2_vnni, avx512_vnni, avx512_vnni, avx512_amx
#define DECODESTEP_BF16_BUILDS avx2, avx512, avx512_bf16, avx512_bf16
#define DECODESTEP_PAIR_BUILDS avx2, avx512, avx512_bf16, avx512
#define DECODESTEP_ALL_PAIR_BUILDS avx2_vnni, avx512_vnni, avx512_bf16, avx512_vnni
#elif defined(DECODESTEP_ARM)
#define DECODESTEP_ALL_BUILDS neon_dotprod, neon_i8mm
#define DECODESTEP_VECTOR_BUILDS neon, neon
#define DECODESTEP_BYTE_BUILDS neon_dotprod, neon_i8mm
#define DECODESTEP_TILE_BUILDS neon_dotprod, neon_i8mm
#define DECODESTEP_BF16_BUILDS neon, neon
#define DECODESTEP_PAIR_BUILDS neon, neon
#define DECODESTEP_ALL_PAIR_BUILDS neon_dotprod, neon_i8mm
#else
#define DECODESTEP_ALL_BUILDS baseline
#define DECODESTEP_VECTOR_BUILDS baseline
#define DECODESTEP_BYTE_BUILDS baseline
#define DECODESTEP_TILE_BUILDS baseline
#define DECODESTEP_BF16_BUILDS baseline
#define DECODESTEP_PAIR_BUILDS baseline
#define DECODESTEP_ALL_PAIR_BUILDS baseline
#endif

// DECODESTEP_TIERS with one of these lists.
#define DECODESTEP_EACH_TIER(X, ...) DECODESTEP_TIERS(X, __VA_ARGS__)
