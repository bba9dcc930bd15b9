#include "core/isa.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace decodestep {
namespace {

struct Tier {
    Isa isa;
    const char* name;
};

#define DECODESTEP_TIER(tier, build) {Isa::tier, #tier},
constexpr Tier kTiers[] = {DECODESTEP_TIERS(DECODESTEP_TIER, , , )};
#undef DECODESTEP_TIER

// Whether this CPU has what the flags of a tier in CMakeLists.txt let the compiler use.
bool runs(Isa isa) {
    switch (isa) {
        case Isa::baseline:
            return true;
#ifdef DECODESTEP_X86
        case Isa::avx2:
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
        case Isa::avx2_vnni:
            return runs(Isa::avx2) && __builtin_cpu_supports("avxvnni");
#endif
#ifdef DECODESTEP_HAS_AVX512
        case Isa::avx512:
            return runs(Isa::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
        case Isa::avx512_vnni:
            return runs(Isa::avx512) && __builtin_cpu_supports("avx512vnni");
        case Isa::avx512_bf16:
            return runs(Isa::avx512_vnni) && __builtin_cpu_supports("avx512bf16") &&
                   __builtin_cpu_supports("avx512vbmi2");
#endif
    }
    return false;
}

Isa choose_isa() {
#ifdef DECODESTEP_X86
    __builtin_cpu_init();
#endif
    const char* wanted = std::getenv("DECODESTEP_ISA");
    Isa best = Isa::baseline;
    std::string names;
    for (const Tier& tier : kTiers) {
        if (!runs(tier.isa)) continue;
        if (wanted != nullptr && std::string(wanted) == tier.name) return tier.isa;
        best = tier.isa;
        names += (names.empty() ? "" : ", ") + std::string(tier.name);
    }
    if (wanted == nullptr) return best;
    throw std::invalid_argument("isa: DECODESTEP_ISA must be one of " + names + ", which this machine has; got '" +
                                wanted + "'");
}

}  // namespace

Isa isa() {
    static const Isa chosen = choose_isa();
    return chosen;
}

const char* isa_name() { return kTiers[static_cast<int>(isa())].name; }

}  // namespace decodestep
