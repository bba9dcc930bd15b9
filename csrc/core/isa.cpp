#include "core/isa.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

#ifdef DECODESTEP_X86
#include <cpuid.h>
#endif
#if defined(DECODESTEP_HAS_AVX512) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(DECODESTEP_ARM) && defined(__linux__)
#include <sys/auxv.h>
#elif defined(DECODESTEP_ARM) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

namespace decodestep {
namespace {

struct NamedTier {
    Tier tier;
    const char* name;
};

#define DECODESTEP_NAMED_TIER(tier, build) {Tier::tier, #tier},
constexpr NamedTier kTiers[] = {DECODESTEP_EACH_TIER(DECODESTEP_NAMED_TIER, DECODESTEP_ALL_BUILDS)};
#undef DECODESTEP_NAMED_TIER

#ifdef DECODESTEP_X86
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

bool has_f16c() { return cpuid_bit(1, 0, kEcx, 29); }
bool has_avx_vnni() { return cpuid_bit(7, 1, kEax, 4); }
#endif

#ifdef DECODESTEP_HAS_AVX512
// Whether the CPU has AMX and the system permits this process to use it. Linux saves the tile registers of a thread
// only for processes that have requested it; this requests it.
bool has_tiles() {
#if defined(DECODESTEP_EMULATE_AVX512)
    return true;
#elif defined(__linux__)
    constexpr long kRequestPermission = 0x1023, kTileData = 18;  // of arch_prctl
    const bool tiles = cpuid_bit(7, 0, kEdx, 24), of_integers = cpuid_bit(7, 0, kEdx, 25);
    return tiles && of_integers && syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
    return false;
#endif
}
#endif

#if defined(DECODESTEP_ARM) && defined(__linux__)
bool has_dotprod() { return (getauxval(AT_HWCAP) >> 20 & 1) != 0; }  // HWCAP_ASIMDDP
bool has_i8mm() { return (getauxval(AT_HWCAP2) >> 13 & 1) != 0; }    // HWCAP2_I8MM, which old headers lack
#elif defined(DECODESTEP_ARM) && defined(__APPLE__)
bool has_feature(const char* name) {
    int found = 0;
    size_t size = sizeof found;
    return sysctlbyname(name, &found, &size, nullptr, 0) == 0 && found != 0;
}
bool has_dotprod() { return has_feature("hw.optional.arm.FEAT_DotProd"); }
bool has_i8mm() { return has_feature("hw.optional.arm.FEAT_I8MM"); }
#elif defined(DECODESTEP_ARM)
bool has_dotprod() { return false; }
bool has_i8mm() { return false; }
#endif

// Whether this CPU has what the flags of a tier in CMakeLists.txt let the compiler use.
bool runs(Tier tier) {
    switch (tier) {
        case Tier::baseline:
            return true;
#ifdef DECODESTEP_X86
        case Tier::avx2:
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
        case Tier::avx2_vnni:
            return runs(Tier::avx2) && has_avx_vnni();
#endif
#ifdef DECODESTEP_HAS_AVX512
        case Tier::avx512:
            return runs(Tier::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
        case Tier::avx512_vnni:
            return runs(Tier::avx512) && __builtin_cpu_supports("avx512vnni");
        case Tier::avx512_bf16:
            return runs(Tier::avx512_vnni) && __builtin_cpu_supports("avx512bf16") &&
                   __builtin_cpu_supports("avx512vbmi2");
        case Tier::avx512_amx:
            return runs(Tier::avx512_bf16) && has_tiles();
#endif
#ifdef DECODESTEP_ARM
        case Tier::neon:
            return true;
        case Tier::neon_dotprod:
            return has_dotprod();
        case Tier::neon_i8mm:
            return has_dotprod() && has_i8mm();
#endif
    }
    return false;
}

Tier choose_tier() {
#ifdef DECODESTEP_X86
    __builtin_cpu_init();
#endif
    const char* wanted = std::getenv("DECODESTEP_ISA");
    Tier best = Tier::baseline;
    std::string names;
    for (const auto& [tier, name] : kTiers) {
        if (!runs(tier)) continue;
        if (wanted != nullptr && std::string(wanted) == name) return tier;
        best = tier;
        names += (names.empty() ? "" : ", ") + std::string(name);
    }
    if (wanted == nullptr) return best;
    throw std::invalid_argument("isa: DECODESTEP_ISA must be one of " + names + ", which this machine has; got '" +
                                wanted + "'");
}

}  // namespace

Tier current_tier() {
    static const Tier chosen = choose_tier();
    return chosen;
}

const char* tier_name() { return kTiers[static_cast<int>(current_tier())].name; }

}  // namespace decodestep
