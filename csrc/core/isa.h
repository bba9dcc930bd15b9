// The instruction sets that kernels are built for, and the choice between them at run time.
#pragma once

#include "core/compiler.h"
#include "core/float_environment.h"
#include "core/tiers.h"

namespace decodestep {

#define DECODESTEP_ENUMERATOR(tier, build) tier,
enum class Tier { DECODESTEP_EACH_TIER(DECODESTEP_ENUMERATOR, DECODESTEP_ALL_BUILDS) };
#undef DECODESTEP_ENUMERATOR

// The best tier that this CPU supports, or the one named by the environment variable DECODESTEP_ISA. Fixed by the first
// call, which throws std::invalid_argument if DECODESTEP_ISA is not a tier that this CPU supports.
Tier current_tier();
const char* tier_name();

}  // namespace decodestep

// Declares a kernel in the namespace of every build, and `name(args)`, which calls the build for this machine in the
// default floating-point environment. The macro states which instructions the kernel benefits from and so where it is
// built; each macro has a list of sources in CMakeLists.txt. A kernel that calls one with more builds names it
// `decodestep::name`: otherwise it would call the build of its own tier.
#define DECODESTEP_KERNEL(name, Args) DECODESTEP_BUILT_KERNEL(name, Args, DECODESTEP_ALL_BUILDS)
// Wider vectors only: VECTOR_SOURCES.
#define DECODESTEP_VECTOR_KERNEL(name, Args) DECODESTEP_BUILT_KERNEL(name, Args, DECODESTEP_VECTOR_BUILDS)
// int8 dot products: BYTE_SOURCES.
#define DECODESTEP_BYTE_KERNEL(name, Args) DECODESTEP_BUILT_KERNEL(name, Args, DECODESTEP_BYTE_BUILDS)
// Also integer tiles: BYTE_SOURCES, and TILE_SOURCES for what only avx512_amx has.
#define DECODESTEP_TILE_KERNEL(name, Args) DECODESTEP_BUILT_KERNEL(name, Args, DECODESTEP_TILE_BUILDS)
// bfloat16 dot products or byte compression: BF16_SOURCES.
#define DECODESTEP_BF16_KERNEL(name, Args) DECODESTEP_BUILT_KERNEL(name, Args, DECODESTEP_BF16_BUILDS)
// bfloat16 dot products and nothing else of the tiers that have them: BF16_SOURCES, or, for a kernel in the source of a
// DECODESTEP_KERNEL, TIER_SOURCES.
#define DECODESTEP_PAIR_KERNEL(name, Args) DECODESTEP_BUILT_KERNEL(name, Args, DECODESTEP_PAIR_BUILDS)
#define DECODESTEP_ALL_PAIR_KERNEL(name, Args) DECODESTEP_BUILT_KERNEL(name, Args, DECODESTEP_ALL_PAIR_BUILDS)

#define DECODESTEP_BUILT_KERNEL(name, Args, ...)                                                    \
    DECODESTEP_EACH_TIER(DECODESTEP_DECLARE_KERNEL, __VA_ARGS__, name, Args)                        \
    DECODESTEP_INLINE void name(const Args& args) {                                                 \
        const DefaultFloats floats;                                                                 \
        switch (current_tier()) { DECODESTEP_EACH_TIER(DECODESTEP_CALL_KERNEL, __VA_ARGS__, name) } \
    }
#define DECODESTEP_DECLARE_KERNEL(tier, build, name, Args) \
    namespace build {                                      \
    void name(const Args&);                                \
    }
#define DECODESTEP_CALL_KERNEL(tier, build, name) \
    case Tier::tier:                              \
        return build::name(args);
