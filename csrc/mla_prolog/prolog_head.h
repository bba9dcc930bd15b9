// What the MLA prolog does for one head: W_uqqr, RoPE and W_uk for a block of tokens. Included by kernels that are
// compiled once for each instruction set.
#pragma once

#include <algorithm>
#include <bit>
#include <type_traits>

#include "core/parallel.h"
#include "elementwise/rope.h"
#include "mla_prolog/mla_prolog.h"
#include "simd/rounding.h"

namespace decodestep::DECODESTEP_ISA {

constexpr size_t kTokenBlock = 128;  // tokens whose sums stay in the cache beside the weights of a head
constexpr size_t kLine = 64;

constexpr size_t ceil_div(size_t n, size_t unit) { return (n + unit - 1) / unit; }
constexpr size_t round_up(size_t n, size_t unit) { return ceil_div(n, unit) * unit; }

// Arrays one after the other in a buffer; without one it counts how large the buffer has to be.
class Arena {
  public:
    explicit Arena(void* buffer = nullptr) : at_(reinterpret_cast<uintptr_t>(buffer)), start_(at_) {}

    template <class V>
    V* take(size_t n) {
        at_ = round_up(at_, kLine);
        V* array = reinterpret_cast<V*>(at_);
        at_ += n * sizeof(V);
        return array;
    }

    size_t size() const { return at_ - start_ + kLine; }

  private:
    uintptr_t at_, start_;
};

// The tokens in blocks of as equal a size as can be.
struct Blocks {
    size_t tokens, count;

    explicit Blocks(size_t tokens) : tokens(tokens), count(ceil_div(tokens, kTokenBlock)) {}
    size_t begin(size_t block) const { return block * tokens / count; }
    size_t size(size_t block) const { return begin(block + 1) - begin(block); }
    size_t largest() const { return ceil_div(tokens, count); }
};

// The rows of a matrix as `multiply` reads them.
struct Values {
    uint8_t* data;
    size_t stride;

    template <class V>
    V* row(size_t t) const {
        return reinterpret_cast<V*>(data + t * stride);
    }
};

// The sums of a projection, all outputs of a token in a row; int32 in the place of floats for int8.
struct Sums {
    float* data;
    size_t stride;
};

// The values that int32 sums stand for, in the place of floats.
DECODESTEP_INLINE void scaled(const float* sums, float token, const float* scale, size_t n, float* out) {
    for (size_t i = 0; i < n; ++i)
        out[i] = static_cast<float>(static_cast<int32_t>(std::bit_cast<uint32_t>(sums[i]))) * token * scale[i];
}

// The compressed queries of all tokens: what the heads share.
struct Compressed {
    const MlaProlog& a;
    Blocks blocks;
    Values cq;          // as w_uq_qr multiplies them
    float* scale;       // of int8 ones
    Sums up_projected;  // where w_uq_qr has been multiplied for all heads at once, else of stride 0

    size_t head_width() const { return a.nope + a.rope / a.rope_groups; }
};

// Asks the memory for weights that are read soon, in the time of elementwise work.
class Soon {
  public:
    Soon() = default;
    Soon(const Columns& w, size_t first, size_t last) {
        if (!w.packed || first >= last) return;
        const size_t panel = panel_bytes(w.value, w.in);
        at_ = static_cast<const uint8_t*>(w.data) + first / kPanel * panel;
        end_ = at_ + panel_count(last - first) * panel;
    }

    const uint8_t* begin() const { return at_; }

    void ask() {
        for (const uint8_t* to = at_ + std::min<size_t>(kStep, end_ - at_); at_ < to; at_ += kLine)
            __builtin_prefetch(at_, 0, 2);
    }

  private:
    static constexpr size_t kStep = 2048;  // for a token; what it leaves the next product asks for on its way
    const uint8_t *at_ = nullptr, *end_ = nullptr;
};

// One head of a block of tokens.
template <class Real>
struct Head {
    static constexpr bool kWhole = std::is_same_v<Real, float>;  // sums are values as they are

    const Compressed& p;
    const MlaProlog& a;
    size_t task, head, begin, tokens;
    uint8_t* scratch;
    Sums q, query;  // sums of w_uq_qr and of w_uk
    Real* values;   // which those of w_uk stand for, [tokens, query.stride]
    Values nope;
    float* row;

    Head(const Compressed& c, size_t task)
        : p(c),
          a(c.a),
          task(task),
          head(task / c.blocks.count),
          begin(c.blocks.begin(task % c.blocks.count)),
          tokens(c.blocks.size(task % c.blocks.count)) {
        const size_t size = lay_out(Arena());
        lay_out(Arena(thread_scratch(ceil_div(size, sizeof(float)))));
    }

    size_t lay_out(Arena arena) {
        const size_t most = p.blocks.largest(), first = head * p.head_width();
        const size_t stride = p.up_projected.stride ? 0 : sums_width(a.w_uq_qr.columns, first, first + p.head_width());
        scratch = arena.take<uint8_t>(kProductScratch);
        q = {arena.take<float>(most * stride), stride};
        const size_t nope_bytes = round_up(a.nope * sizeof(Real), kGroupBytes);
        nope = {arena.take<uint8_t>(most * nope_bytes), nope_bytes};
        const size_t latent = panel_count(a.latent) * kPanel;
        query = {arena.take<float>(most * latent), latent};
        values = kWhole ? reinterpret_cast<Real*>(query.data) : arena.take<Real>(most * latent);
        row = arena.take<float>(p.head_width());
        return arena.size();
    }

    void run() {
        const Columns w_uk = head_of_w_uk();
        Soon soon(w_uk, 0, a.query ? a.latent : 0);
        for (size_t t = 0; t < tokens; ++t) prefetch_for_write(rope_of(t), a.rope * sizeof(Real));
        const float* sums = up_projected(soon.begin());
        for (size_t t = 0; t < tokens; ++t) {
            soon.ask();
            if (a.query) prefetch_for_write(query_of(t), query_bytes());
            split(t, sums + t * q.stride);
        }
        if (!a.query) return;
        soon = next_head();
        multiply({.x = nope.data,
                  .x_stride = nope.stride,
                  .tokens = tokens,
                  .w = w_uk,
                  .first = 0,
                  .last = a.latent,
                  .y = query.data,
                  .y_stride = query.stride,
                  .scratch = scratch,
                  .next = soon.begin(),
                  .rounded = kWhole ? nullptr : reinterpret_cast<uint16_t*>(values)});
        for (size_t t = 0; t < tokens; ++t) {
            soon.ask();
            put_query(t);
        }
    }

    // The weights that this thread most probably multiplies next.
    Soon next_head() const {
        const size_t next = (task + static_cast<size_t>(a.threads)) / p.blocks.count, width = p.head_width();
        if (next == head || next >= a.heads || p.up_projected.stride) return {};
        return Soon(a.w_uq_qr.columns, next * width, (next + 1) * width);
    }

    Columns head_of_w_uk() const {
        Columns w = a.w_uk;
        w.data = static_cast<const uint8_t*>(w.data) + static_cast<ptrdiff_t>(head) * a.w_uk_stride;
        return w;
    }

    // The head's sums for the first token; those of the next are q.stride behind.
    const float* up_projected(const void* next) {
        const size_t first = head * p.head_width();
        if (p.up_projected.stride) {
            q.stride = p.up_projected.stride;
            return p.up_projected.data + begin * q.stride + first;
        }
        const Columns& w = a.w_uq_qr.columns;
        multiply({.x = p.cq.template row<uint8_t>(begin),
                  .x_stride = p.cq.stride,
                  .tokens = tokens,
                  .w = w,
                  .first = first,
                  .last = first + p.head_width(),
                  .y = q.data,
                  .y_stride = q.stride,
                  .scratch = scratch,
                  .next = next});
        return q.data + sums_before(w, first);
    }

    // The nope part as the input of w_uk, the rope part to its result. That of an int8 product is not rounded.
    void split(size_t t, const float* sums) {
        const size_t width = p.head_width(), half = a.rope / 2, pairs = half / a.rope_groups;
        if (a.w_uq_qr.scale) {
            scaled(sums, p.scale[begin + t], a.w_uq_qr.scale + head * width, width, row);
        } else {
            for (size_t i = 0; i < width; ++i) row[i] = rounded<Real>(sums[i]);
        }
        if (nope.stride) {
            std::memset(nope.row<uint8_t>(t) + nope.stride - kGroupBytes, 0, kGroupBytes);
            put_all(row, a.nope, nope.template row<Real>(t));
        }
        const size_t group = head / (a.heads / a.rope_groups), at = (begin + t) * a.rope;
        rotate_to_halves(row + a.nope, pairs, group * pairs, half, a.sin + at, a.cos + at, rope_of(t));
    }

    size_t place(size_t t) const { return (begin + t) * a.heads + head; }
    Real* rope_of(size_t t) const { return static_cast<Real*>(a.query_rope) + place(t) * a.rope; }
    size_t query_bytes() const { return a.latent * (a.query_scale ? 1 : sizeof(Real)); }
    uint8_t* query_of(size_t t) const { return static_cast<uint8_t*>(a.query) + place(t) * query_bytes(); }

    void put_query(size_t t) const {
        const Real* query_row = values + t * query.stride;
        if (!a.query_scale) {
            std::memcpy(query_of(t), query_row, query_bytes());
            return;
        }
        const float scale = quantise_row(query_row, a.latent, a.half_away, reinterpret_cast<int8_t*>(query_of(t)));
        a.query_scale[place(t)] = scale;
        // The rope in units of the int8 query. The rope of a head that is nothing, where it is nothing too, stays.
        Real* rope = rope_of(t);
        const float factor = a.ckv_scale[0];
        for (size_t i = 0; i < a.rope; ++i) {
            const float value = widen(rope[i]), quotient = value * factor / scale;
            put(((scale == 0.0f) & (value == 0.0f)) ? 0.0f : quotient, rope + i);
        }
    }
};

}  // namespace decodestep::DECODESTEP_ISA
