#include "core/isa.h"

#include <cstdlib>
#include <stdexcept>
#include <string>
#include <string_view>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__x86_64__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace decodestep {
namespace {

// For each tier of core/tiers.txt, runs_<tier>: whether this CPU has what the flags of its row let the compiler use.

bool runs_baseline() { return true; }

#if defined(__x86_64__)
enum CpuidRegister { kEax, kEbx, kEcx, kEdx };

// A bit that CPUID returns: for features whose names Clang's __builtin_cpu_supports has learnt late.
bool cpuid_bit(unsigned leaf, unsigned subleaf, CpuidRegister from, int bit) {
#ifdef DECODESTEP_EMULATE_AVX512
    return true;
#else
    unsigned registers[4] = {};
    return __get_cpuid_count(leaf, subleaf, &registers[kEax], &registers[kEbx], &registers[kEcx], &registers[kEdx]) &&
           (registers[from] >> bit & 1) != 0;
#endif
}

bool runs_avx2() {
    const bool f16c = cpuid_bit(1, 0, kEcx, 29);
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
}

bool runs_avx2_vnni() {
    const bool avx_vnni = cpuid_bit(7, 1, kEax, 4);
    return runs_avx2() && avx_vnni;
}

bool runs_avx512() {
    return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

bool runs_avx512_vnni() { return runs_avx512() && __builtin_cpu_supports("avx512vnni"); }

bool runs_avx512_bf16() {
    return runs_avx512_vnni() && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vbmi2");
}

// Linux saves the tile registers of a thread only for processes that have requested it; this requests it.
bool runs_avx512_amx() {
#if defined(DECODESTEP_EMULATE_AVX512)
    return true;
#elif defined(__linux__)
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl
    const bool tiles = cpuid_bit(7, 0, kEdx, 24), of_integers = cpuid_bit(7, 0, kEdx, 25);
    return runs_avx512_bf16() && tiles && of_integers && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return false;
#endif
}
#elif defined(__aarch64__)
#if defined(__linux__)
bool has_dotprod() { return (getauxval(AT_HWCAP) >> 20 & 1) != 0; }  // HWCAP_ASIMDDP
bool has_i8mm() { return (getauxval(AT_HWCAP2) >> 13 & 1) != 0; }    // HWCAP2_I8MM, which old headers lack
#elif defined(__APPLE__)
bool has_feature(const char* name) {
    int found = 0;
    size_t size = sizeof found;
    return sysctlbyname(name, &found, &size, nullptr, 0) == 0 && found != 0;
}
bool has_dotprod() { return has_feature("hw.optional.arm.FEAT_DotProd"); }
bool has_i8mm() { return has_feature("hw.optional.arm.FEAT_I8MM"); }
#else
bool has_dotprod() { return false; }
bool has_i8mm() { return false; }
#endif

bool runs_neon() { return true; }
bool runs_neon_dotprod() { return has_dotprod(); }
bool runs_neon_i8mm() { return has_dotprod() && has_i8mm(); }
#endif

struct KnownTier {
    std::string_view name;
    bool (*runs)();
    bool is_built;
};

#define DECODESTEP_KNOWN_TIER(tier, is_built) {#tier, runs_##tier, is_built},
constexpr KnownTier kTiers[] = {DECODESTEP_TIERS(DECODESTEP_KNOWN_TIER)};
#undef DECODESTEP_KNOWN_TIER

#define DECODESTEP_NAME(tier, build, ...) #tier,
constexpr const char* kBuiltNames[] = {DECODESTEP_BUILDS_OF_vectors(DECODESTEP_NAME)};  // by the numbers of Tier
#undef DECODESTEP_NAME

[[noreturn]] void refuse(const std::string& message) { throw std::invalid_argument("isa: " + message); }

Tier choose_tier() {
    const char* const given = std::getenv("DECODESTEP_ISA");
    const std::string wanted = given ? given : "";
    const KnownTier* best = nullptr;
    int number = 0, best_number = 0;  // among the tiers that are built
    for (const KnownTier& tier : kTiers) {
        if (tier.runs()) {
            best = &tier;
            best_number = number;
            if (given && wanted == tier.name) break;
        }
        number += tier.is_built;
    }
    if (given && wanted == best->name) {
        if (best->is_built) return static_cast<Tier>(best_number);
        refuse("this core is not built for " + wanted +
               ", which this machine has; build it with DECODESTEP_TIERS=" + wanted + " or DECODESTEP_TIERS=all");
    }
    const std::string usable = usable_tiers();
    if (given)
        refuse("DECODESTEP_ISA must be one of " + usable + ", which this core and this machine have; got '" + wanted +
               "'");
    if (!best->is_built)
        refuse("this core is not built for " + std::string(best->name) +
               ", the best of this machine; build it here, or choose one of " + usable + " by DECODESTEP_ISA");
    return static_cast<Tier>(best_number);
}

}  // namespace

std::string usable_tiers() {
    std::string names;
    for (const KnownTier& tier : kTiers)
        if (tier.is_built && tier.runs()) names += (names.empty() ? "" : ", ") + std::string(tier.name);
    return names;
}

Tier current_tier() {
    static const Tier chosen = choose_tier();
    return chosen;
}

const char* tier_name() { return kBuiltNames[static_cast<int>(current_tier())]; }

}  // namespace decodestep
