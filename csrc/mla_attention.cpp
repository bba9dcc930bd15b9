#include "mla_attention.h"

#include "parallel.h"
#include "simd.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

// acc += a . b, ascending.
DECODESTEP_INLINE f32x16 dot(const float* a, const float* b, size_t n, f32x16 acc) {
    size_t i = 0;
    for (; i + kLanes <= n; i += kLanes) acc = fma(load(a + i), load(b + i), acc);
    if (i < n) acc = fma(load_first(a + i, n - i), load_first(b + i, n - i), acc);
    return acc;
}

// One token and the heads of one group: they read the same keys and the same columns of the values.
class Group {
  public:
    Group(const MlaAttention& a, size_t t, size_t group)
        : a_(a),
          t_(t),
          group_(group),
          heads_(a.heads / a.groups),
          length_(a.lengths[t]),
          pairs_(a.rope / 2 / a.groups),
          width_(a.latent / a.groups),
          scores_(thread_scratch(heads_ * length_)) {}

    void run() {
        for (size_t h = 0; h < heads_; ++h) score(h);
        for (size_t h = 0; h < heads_; ++h) softmax(scores_ + h * length_);
        size_t c = 0;
        for (; c + 4 * kLanes <= width_; c += 4 * kLanes) gather<4>(c, kLanes);
        for (; c + kLanes <= width_; c += kLanes) gather<1>(c, kLanes);
        if (c < width_) gather<1>(c, width_ - c);
    }

  private:
    size_t head(size_t h) const { return group_ * heads_ + h; }

    template <class Body>
    DECODESTEP_INLINE void each_key(Body&& body) const {
        const int64_t* table = a_.block_table + a_.sequence[t_] * a_.blocks;
        for (size_t j = 0; j < length_;) {
            const int64_t block = table[j / a_.block_size];
            const float* kv = a_.kv_cache + block * a_.kv_block_stride;
            const float* kr = a_.kr_cache + block * a_.kr_block_stride;
            const size_t left = length_ - j, rows = left < a_.block_size ? left : a_.block_size;
            for (size_t row = 0; row < rows; ++row, ++j) body(j, kv + row * a_.latent, kr + row * a_.rope);
        }
    }

    void score(size_t h) {
        const size_t row = t_ * a_.heads + head(h), first = group_ * pairs_, second = a_.rope / 2 + first;
        const float* query = a_.query ? a_.query + row * a_.latent : nullptr;
        const float* query_rope = a_.query_rope + row * a_.rope;
        float* scores = scores_ + h * length_;
        each_key([&](size_t j, const float* kv, const float* kr) {
            f32x16 acc = broadcast(0.0f);
            if (query) acc = dot(query, kv, a_.latent, acc);
            acc = dot(query_rope + first, kr + first, pairs_, acc);
            acc = dot(query_rope + second, kr + second, pairs_, acc);
            scores[j] = sum(acc) * a_.scale;
        });
    }

    // Scores to weights that sum to one; the maximum and the sum run over 16 lanes, ascending, and are folded at the
    // end.
    void softmax(float* scores) const {
        constexpr float kLowest = -3.4e38f;
        float top = kLowest;
        for (size_t j = 0; j < length_; ++j) top = scores[j] > top ? scores[j] : top;
        const f32x16 shift = broadcast(top);
        f32x16 total = broadcast(0.0f);
        size_t j = 0;
        for (; j + kLanes <= length_; j += kLanes) {
            const f32x16 e = exp(load(scores + j) - shift);
            store(scores + j, e);
            total = total + e;
        }
        if (const size_t rest = length_ - j; rest > 0) {
            store_first(scores + j, exp(load_first(scores + j, rest) - shift), rest);
            total = total + load_first(scores + j, rest);
        }
        const float inverse = 1.0f / sum(total);
        for (size_t i = 0; i < length_; ++i) scores[i] *= inverse;
    }

    // Columns [c, c + W * 16) of the group's block, or its last `lanes` columns where W is 1.
    template <int W>
    void gather(size_t c, size_t lanes) {
        for (size_t h = 0; h < heads_; ++h) {
            f32x16 total[W];
#pragma GCC unroll 4
            for (int i = 0; i < W; ++i) total[i] = broadcast(0.0f);
            const float* scores = scores_ + h * length_;
            each_key([&](size_t j, const float* kv, const float*) {
                const float* value = kv + group_ * width_ + c;
                const f32x16 weight = broadcast(scores[j]);
#pragma GCC unroll 4
                for (int i = 0; i < W; ++i)
                    total[i] =
                        fma(weight, lanes == kLanes ? load(value + i * kLanes) : load_first(value, lanes), total[i]);
            });
            float* out = a_.out + (t_ * a_.heads + head(h)) * width_ + c;
#pragma GCC unroll 4
            for (int i = 0; i < W; ++i)
                lanes == kLanes ? store(out + i * kLanes, total[i]) : store_first(out, total[i], lanes);
        }
    }

    const MlaAttention& a_;
    const size_t t_, group_, heads_, length_, pairs_, width_;
    float* scores_;
};

}  // namespace

void mla_attention(const MlaAttention& a) {
    parallel_for(a.tokens * a.groups, a.threads,
                 [&](size_t task) { Group(a, task / a.groups, task % a.groups).run(); });
}

}  // namespace decodestep::DECODESTEP_ISA
