// The tiers of instruction sets that the core is built for.
#pragma once

#if defined(__x86_64__)
#define DECODESTEP_X86 1
#endif

// The tiers, from the least to the best: X(tier, ...) for each. A tier is the namespace of a build of the kernels, and
// a set of flags in CMakeLists.txt; core/isa.cpp says what a CPU needs to run it, csrc/simd has its vectors.
//
// DECODESTEP_VECTOR_TIERS are those whose vectors differ. avx512_bf16 adds dot products and compression of bytes to
// the vectors of avx512, so kernels that use neither are built once for both. A build without AVX-512
// (DECODESTEP_AVX512 in CMakeLists.txt) takes half the time.
#if defined(DECODESTEP_X86) && !defined(DECODESTEP_WITHOUT_AVX512)
#define DECODESTEP_HAS_AVX512 1
#define DECODESTEP_VECTOR_TIERS(X, ...)    \
    X(baseline __VA_OPT__(, ) __VA_ARGS__) \
    X(avx2 __VA_OPT__(, ) __VA_ARGS__)     \
    X(avx512 __VA_OPT__(, ) __VA_ARGS__)
#define DECODESTEP_TIERS(X, ...)            \
    DECODESTEP_VECTOR_TIERS(X, __VA_ARGS__) \
    X(avx512_bf16 __VA_OPT__(, ) __VA_ARGS__)
#else
#ifdef DECODESTEP_X86
#define DECODESTEP_VECTOR_TIERS(X, ...)    \
    X(baseline __VA_OPT__(, ) __VA_ARGS__) \
    X(avx2 __VA_OPT__(, ) __VA_ARGS__)
#else
#define DECODESTEP_VECTOR_TIERS(X, ...) X(baseline __VA_OPT__(, ) __VA_ARGS__)
#endif
#define DECODESTEP_TIERS(X, ...) DECODESTEP_VECTOR_TIERS(X __VA_OPT__(, ) __VA_ARGS__)
#endif
