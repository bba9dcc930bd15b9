// The tiers of instruction sets that the core is built for.
#pragma once

#if defined(__x86_64__)
#define DECODESTEP_X86 1
#endif
#if defined(DECODESTEP_X86) && !defined(DECODESTEP_WITHOUT_AVX512)
#define DECODESTEP_HAS_AVX512 1
#endif

// The tiers, from the least to the best, each with the build of a kernel that runs on it: X(tier, build, ...) for each.
// A tier is what a CPU has, core/isa.cpp says how that is seen. A build is a namespace, and a set of flags in
// CMakeLists.txt; csrc/simd has its vectors. A kernel is built where it gains by what a tier adds: to the vectors of
// avx2 and avx512 avx2_vnni and avx512_vnni add products of bytes, and avx512_bf16 adds products of bfloat16 and
// compression of bytes, avx512_amx tiles of integers. The four arguments are the builds of a kernel that serve those
// tiers.
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
#else
#define DECODESTEP_TIERS(X, on_avx2_vnni, on_avx512_vnni, on_avx512_bf16, on_avx512_amx, ...) \
    X(baseline, baseline __VA_OPT__(, ) __VA_ARGS__)
#endif
