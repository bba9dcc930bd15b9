// The instruction sets that the kernels are built for, and the choice among them at run time.
#pragma once

#include "core/float_environment.h"
#include "core/tiers.h"

namespace decodestep {

#define DECODESTEP_ENUMERATOR(tier) tier,
enum class Isa { DECODESTEP_TIERS(DECODESTEP_ENUMERATOR) };
#undef DECODESTEP_ENUMERATOR

// The best tier that this CPU runs, or the one that the environment variable DECODESTEP_ISA names. Fixed at the first
// call, which throws std::invalid_argument for a name that is not of a tier that this CPU runs.
Isa isa();
const char* isa_name();

}  // namespace decodestep

// Declares a kernel in the namespace of every tier, and `name(args)` to call the build chosen for this machine, in the
// default floating-point environment.
#define DECODESTEP_KERNEL(name, Args)                       \
    DECODESTEP_TIERS(DECODESTEP_DECLARE_KERNEL, name, Args) \
    DECODESTEP_DISPATCH_KERNEL(name, Args)

// The same for a kernel that is built for DECODESTEP_VECTOR_TIERS alone: one of SHARED_SOURCES in CMakeLists.txt. It
// must not use what distinguishes avx512_bf16, which would be lost there.
#ifdef DECODESTEP_HAS_AVX512
#define DECODESTEP_VECTOR_KERNEL(name, Args)                       \
    DECODESTEP_VECTOR_TIERS(DECODESTEP_DECLARE_KERNEL, name, Args) \
    namespace avx512_bf16 {                                        \
    using avx512::name;                                            \
    }                                                              \
    DECODESTEP_DISPATCH_KERNEL(name, Args)
#else
#define DECODESTEP_VECTOR_KERNEL(name, Args) DECODESTEP_KERNEL(name, Args)
#endif

#define DECODESTEP_DECLARE_KERNEL(tier, name, Args) \
    namespace tier {                                \
    void name(const Args&);                         \
    }
#define DECODESTEP_DISPATCH_KERNEL(name, Args)                                  \
    inline void name(const Args& args) {                                        \
        const DefaultFloats floats;                                             \
        switch (isa()) { DECODESTEP_TIERS(DECODESTEP_CALL_KERNEL, name, args) } \
    }
#define DECODESTEP_CALL_KERNEL(tier, name, args) \
    case Isa::tier:                              \
        return tier::name(args);
