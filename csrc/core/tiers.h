// The tiers (instruction sets) that the core is built for.
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
// A tier is a set of CPU features, detected in core/isa.cpp. A build is a namespace and a set of compiler flags in
// CMakeLists.txt; csrc/simd has its vector primitives.
//
// A kernel has a build only where a tier makes it faster. avx2, avx512 and neon bring vectors; avx2_vnni, avx512_vnni,
// neon_dotprod and neon_i8mm add int8 dot products to these; avx512_bf16 adds bfloat16 dot products and byte
// compression, avx512_amx integer tiles. The arguments of DECODESTEP_TIERS are the builds that run on these later
// tiers; lists of them follow, one for each kind of kernel.
//
// On CPUs with AMX a bfloat16 dot product of sixteen pairs takes two cycles, in which four fused multiply-adds of
// sixteen floats complete. Kernels that benefit from bfloat16 dot products alone therefore run another build there,
// with the same bits.
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
