#include "core/isa.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace decodestep {
namespace {

constexpr const char* NAMES[] = {"baseline", "avx2", "avx512", "avx512_bf16"};  // in the order of Isa

Isa best_isa() {
#ifdef DECODESTEP_X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const bool bf16 = avx512 && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bf16") &&
                      __builtin_cpu_supports("avx512vbmi2");
    return bf16 ? Isa::avx512_bf16 : avx512 ? Isa::avx512 : avx2 ? Isa::avx2 : Isa::baseline;
#else
    return Isa::baseline;
#endif
}

Isa choose_isa() {
    const Isa best = best_isa();
    const char* asked = std::getenv("DECODESTEP_ISA");
    if (asked == nullptr) return best;
    std::string names;
    for (int level = 0; level <= static_cast<int>(best); ++level) {
        if (std::string(NAMES[level]) == asked) return static_cast<Isa>(level);
        names += (level ? ", " : "") + std::string(NAMES[level]);
    }
    throw std::invalid_argument("isa: DECODESTEP_ISA must be one of " + names + ", which this machine has; got '" +
                                asked + "'");
}

}  // namespace

Isa isa() {
    static const Isa chosen = choose_isa();
    return chosen;
}

const char* isa_name() { return NAMES[static_cast<int>(isa())]; }

}  // namespace decodestep
