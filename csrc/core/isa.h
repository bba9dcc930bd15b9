// The instruction sets that the kernels are built for, and the choice among them at run time.
#pragma once

#include "core/float_environment.h"
#include "core/tiers.h"

namespace decodestep {

#define DECODESTEP_ENUMERATOR(tier, build) tier,
enum class Isa { DECODESTEP_EACH_TIER(DECODESTEP_ENUMERATOR, DECODESTEP_ALL_BUILDS) };
#undef DECODESTEP_ENUMERATOR

// The best tier that this CPU runs, or the one that the environment variable DECODESTEP_ISA names. Fixed at the first
// call, which throws std::invalid_argument for a name that is not of a tier that this CPU runs.
Isa isa();
const char* isa_name();

}  // namespace decodestep

// Declares a kernel in the namespace of every build, and `name(args)` to call the build chosen for this machine, in the
// default floating-point environment. What the kernel gains by decides where it is built: each has a list of sources in
// CMakeLists.txt. Where one kernel calls another that has more builds, it names it `decodestep::name`: else it would
// call the build for its own tier.
#define DECODESTEP_KERNEL(name, Args) DECODESTEP_BUILT_KERNEL(name, Args, DECODESTEP_ALL_BUILDS)
// By vectors alone: VECTOR_SOURCES.
#define DECODESTEP_VECTOR_KERNEL(name, Args) DECODESTEP_BUILT_KERNEL(name, Args, DECODESTEP_VECTOR_BUILDS)
// By products of bytes: BYTE_SOURCES.
#define DECODESTEP_BYTE_KERNEL(name, Args) DECODESTEP_BUILT_KERNEL(name, Args, DECODESTEP_BYTE_BUILDS)
// By tiles of integers too: BYTE_SOURCES, and TILE_SOURCES, which hold what avx512_amx has of its own.
#define DECODESTEP_TILE_KERNEL(name, Args) DECODESTEP_BUILT_KERNEL(name, Args, DECODESTEP_TILE_BUILDS)
// By products of bfloat16 or compression of bytes: BF16_SOURCES.
#define DECODESTEP_BF16_KERNEL(name, Args) DECODESTEP_BUILT_KERNEL(name, Args, DECODESTEP_BF16_BUILDS)
// By products of bfloat16, and nothing else that a tier with them adds: BF16_SOURCES or, where it is a part of a kernel
// of all builds, those of that.
#define DECODESTEP_PAIR_KERNEL(name, Args) DECODESTEP_BUILT_KERNEL(name, Args, DECODESTEP_PAIR_BUILDS)
#define DECODESTEP_ALL_PAIR_KERNEL(name, Args) DECODESTEP_BUILT_KERNEL(name, Args, DECODESTEP_ALL_PAIR_BUILDS)

#define DECODESTEP_BUILT_KERNEL(name, Args, ...)                                           \
    DECODESTEP_EACH_TIER(DECODESTEP_DECLARE_KERNEL, __VA_ARGS__, name, Args)               \
    inline void name(const Args& args) {                                                   \
        const DefaultFloats floats;                                                        \
        switch (isa()) { DECODESTEP_EACH_TIER(DECODESTEP_CALL_KERNEL, __VA_ARGS__, name) } \
    }
#define DECODESTEP_DECLARE_KERNEL(tier, build, name, Args) \
    namespace build {                                      \
    void name(const Args&);                                \
    }
#define DECODESTEP_CALL_KERNEL(tier, build, name) \
    case Isa::tier:                               \
        return build::name(args);
