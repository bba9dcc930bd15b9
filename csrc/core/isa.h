// The instruction sets that the kernels are built for, and the choice among them at run time.
#pragma once

#if defined(__x86_64__)
#define DECODESTEP_X86 1
#endif

// The tiers, from the least to the best: X(tier, ...) for each. A tier is the namespace of a build of the kernels, and
// a set of flags in CMakeLists.txt; core/isa.cpp says what a CPU needs to run it, csrc/simd has its vectors.
#ifdef DECODESTEP_X86
#define DECODESTEP_TIERS(X, ...)           \
    X(baseline __VA_OPT__(, ) __VA_ARGS__) \
    X(avx2 __VA_OPT__(, ) __VA_ARGS__)     \
    X(avx512 __VA_OPT__(, ) __VA_ARGS__)   \
    X(avx512_bf16 __VA_OPT__(, ) __VA_ARGS__)
#else
#define DECODESTEP_TIERS(X, ...) X(baseline __VA_OPT__(, ) __VA_ARGS__)
#endif

namespace decodestep {

#define DECODESTEP_ENUMERATOR(tier) tier,
enum class Isa { DECODESTEP_TIERS(DECODESTEP_ENUMERATOR) };
#undef DECODESTEP_ENUMERATOR

// The best tier that this CPU runs, or the one that the environment variable DECODESTEP_ISA names. Fixed at the first
// call, which throws std::invalid_argument for a name that is not of a tier that this CPU runs.
Isa isa();
const char* isa_name();

}  // namespace decodestep

// Declares a kernel in the namespace of every tier, and `name(args)` to call the build chosen for this machine.
#define DECODESTEP_KERNEL(name, Args)                                           \
    DECODESTEP_TIERS(DECODESTEP_DECLARE_KERNEL, name, Args)                     \
    inline void name(const Args& args) {                                        \
        switch (isa()) { DECODESTEP_TIERS(DECODESTEP_CALL_KERNEL, name, args) } \
    }
#define DECODESTEP_DECLARE_KERNEL(tier, name, Args) \
    namespace tier {                                \
    void name(const Args&);                         \
    }
#define DECODESTEP_CALL_KERNEL(tier, name, args) \
    case Isa::tier:                              \
        return tier::name(args);
