// The instruction sets that kernels are built for, and the choice between them at run time.
#pragma once

#include <string>

#include "core/compiler.h"
#include "core/float_environment.h"
#include "core/tiers.h"

namespace decodestep {

#define DECODESTEP_ENUMERATOR(tier, build, ...) tier,
enum class Tier { DECODESTEP_BUILDS_OF_vectors(DECODESTEP_ENUMERATOR) };
#undef DECODESTEP_ENUMERATOR

// The best tier of this CPU, or the one named by the environment variable DECODESTEP_ISA. Fixed by the first call,
// which throws std::invalid_argument where this CPU, or this core, lacks it.
Tier current_tier();
const char* tier_name();

// The tiers that this core is built for and this CPU has, separated by commas.
std::string usable_tiers();

}  // namespace decodestep

// Declares a kernel in the namespace of every build, and `name(args)`, which calls the build for this machine in the
// default floating-point environment. kind: of core/tiers.txt, which states what the kernel benefits from and so where
// it is built; CMakeLists.txt has the list of its sources. A kernel that calls one of another kind names it
// `decodestep::name`: otherwise it would call the build of its own tier.
#define DECODESTEP_KERNEL(kind, name, Args)                                                                            \
    DECODESTEP_BUILDS_OF_##kind(DECODESTEP_DECLARE_KERNEL, name, Args) DECODESTEP_INLINE void name(const Args& args) { \
        const DefaultFloats floats;                                                                                    \
        switch (current_tier()) { DECODESTEP_BUILDS_OF_##kind(DECODESTEP_CALL_KERNEL, name) }                          \
    }
#define DECODESTEP_DECLARE_KERNEL(tier, build, name, Args) \
    namespace build {                                      \
    void name(const Args&);                                \
    }
#define DECODESTEP_CALL_KERNEL(tier, build, name) \
    case Tier::tier:                              \
        return build::name(args);
