#include "isa.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace decodestep {
namespace {

Isa best_isa() {
#ifdef DECODESTEP_X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return avx512 ? Isa::avx512 : avx2 ? Isa::avx2 : Isa::baseline;
#else
    return Isa::baseline;
#endif
}

Isa choose_isa() {
    const Isa best = best_isa();
    const char* asked = std::getenv("DECODESTEP_ISA");
    if (asked == nullptr) return best;
    if (std::string_view(asked) == "baseline") return Isa::baseline;
    if (std::string_view(asked) == "avx2") return std::min(best, Isa::avx2);
    return best;
}

}  // namespace

Isa isa() {
    static const Isa chosen = choose_isa();
    return chosen;
}

const char* isa_name() {
    switch (isa()) {
        case Isa::avx512:
            return "avx512";
        case Isa::avx2:
            return "avx2";
        case Isa::baseline:
            break;
    }
    return "baseline";
}

}  // namespace decodestep
