#include "attention/bf16_attention.h"

#include <type_traits>

#include "attention/group_attention.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

// A query in the form in which it is multiplied: as it is, or in the memory.
template <class Factor>
const Factor* factors_of(const float* query, size_t width, [[maybe_unused]] float* memory) {
    if constexpr (std::is_same_v<Factor, float>) {
        return query;
    } else {
        Factor* const out = reinterpret_cast<Factor*>(memory);
        for (size_t i = 0; i < width; i += kLanes) PairDot::round_values(out + i, load(query + i));
        return out;
    }
}

}  // namespace

void attend_bf16(const Bf16Attention& a) {
    using Factor = Bf16Cache::Factor;
    Queries<Factor> q;
    q.count = a.count;
    for (size_t r = 0; r < a.count; ++r) {
        q.query[r] = factors_of<Factor>(a.query[r], a.width, a.memory + r * a.width);
        q.first[r] = a.first[r];
        q.length[r] = a.length[r];
    }
    const HeadPages<Bf16Cache> pages{a.keys, a.values, a.table, a.width, a.room};
    attend_split(q, pages, {a.scale, a.cap}, a.split, {a.partials, a.width});
}

}  // namespace decodestep::DECODESTEP_BUILD
