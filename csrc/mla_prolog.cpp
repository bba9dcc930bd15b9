#include "mla_prolog.h"

#include "parallel.h"
#include "rms_norm.h"
#include "simd.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

// The two types of the tensors. `round_all` is the rounding of values that stay float32 in memory.
struct Bf16 {
    uint16_t bits;
};

DECODESTEP_INLINE Bf16 to_bf16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const bool nan = (bits & 0x7fffffff) > 0x7f800000;
    const uint32_t even = bits + 0x7fff + (bits >> 16 & 1);
    return {static_cast<uint16_t>(nan ? bits >> 16 | 0x40 : even >> 16)};
}

DECODESTEP_INLINE void put(float value, float* out) { *out = value; }
DECODESTEP_INLINE void put(float value, Bf16* out) { *out = to_bf16(value); }

template <class Real>
DECODESTEP_INLINE void put_all(const float* values, size_t n, Real* out) {
    for (size_t i = 0; i < n; ++i) put(values[i], out + i);
}

template <class Real>
void round_all(float* values, size_t n) {
    if constexpr (sizeof(Real) == sizeof(Bf16)) {
        for (size_t i = 0; i < n; ++i) {
            const uint32_t bits = uint32_t{to_bf16(values[i]).bits} << 16;
            std::memcpy(values + i, &bits, sizeof bits);
        }
    }
}

DECODESTEP_INLINE f32x16 widen(const float* p) { return load(p); }
DECODESTEP_INLINE f32x16 widen(const Bf16* p) { return from_bf16(p); }

template <class Real>
DECODESTEP_INLINE f32x16 widen_first(const Real* p, size_t n) {
    Real lanes[kLanes] = {};
    std::memcpy(lanes, p, n * sizeof(Real));
    return widen(lanes);
}

void project(const float* x, size_t tokens, const Rows& w, float* y, int threads) {
    linear({.x = x,
            .x_stride = static_cast<ptrdiff_t>(w.in),
            .tokens = tokens,
            .in = w.in,
            .out = w.out,
            .w = w.data,
            .w_stride = w.stride,
            .format = w.format,
            .y = y,
            .y_stride = static_cast<ptrdiff_t>(w.out),
            .threads = threads});
}

// Interleaved pairs in, halves out: pair j gives out[j] and out[half + j]. The pairs first, first + 1, ... of the row
// are given; what the other pairs would give is zero.
template <class Real>
void rope(const float* x, size_t pairs, size_t first, size_t half, const float* sin, const float* cos, Real* out) {
    if (pairs < half) std::memset(out, 0, 2 * half * sizeof(Real));
    for (size_t i = 0; i < pairs; ++i) {
        const size_t j = first + i;
        const float even = x[2 * i], odd = x[2 * i + 1];
        put(even * cos[j] - odd * sin[j], out + j);
        put(odd * cos[half + j] + even * sin[half + j], out + half + j);
    }
}

// out[h] = sum over d, ascending, of x[d] * w[d, h].
template <class Real>
void absorb(const float* x, const Real* w, size_t nope, size_t latent, Real* out) {
    constexpr size_t kWide = 4;
    float lanes[kWide * kLanes];
    size_t h = 0;
    for (; h + kWide * kLanes <= latent; h += kWide * kLanes) {
        f32x16 total[kWide];
        for (auto& t : total) t = broadcast(0.0f);
        for (size_t d = 0; d < nope; ++d) {
            const f32x16 value = broadcast(x[d]);
#pragma GCC unroll 4
            for (size_t i = 0; i < kWide; ++i) total[i] = fma(value, widen(w + d * latent + h + i * kLanes), total[i]);
        }
        for (size_t i = 0; i < kWide; ++i) store(lanes + i * kLanes, total[i]);
        put_all(lanes, kWide * kLanes, out + h);
    }
    for (; h < latent; h += kLanes) {
        const size_t count = latent - h < kLanes ? latent - h : kLanes;
        f32x16 total = broadcast(0.0f);
        for (size_t d = 0; d < nope; ++d) total = fma(broadcast(x[d]), widen_first(w + d * latent + h, count), total);
        store(lanes, total);
        put_all(lanes, count, out + h);
    }
}

// Overwrites the token's ckv_kr: the norm is taken in place.
template <class Real>
void cache_token(const MlaProlog& a, size_t t) {
    if (a.slots[t] < 0) return;
    const size_t block = a.slots[t] / a.block_size, row = a.slots[t] % a.block_size;
    float* ckv = a.ckv_kr + t * (a.latent + a.rope);
    rms_norm({.x = ckv,
              .x_stride = 0,
              .rows = 1,
              .width = a.latent,
              .gamma = a.gamma_ckv,
              .eps = a.eps_ckv,
              .alpha = a.alpha_ckv,
              .y = ckv,
              .y_stride = 0});
    put_all(ckv, a.latent, static_cast<Real*>(a.kv_cache) + block * a.kv_block_stride + row * a.latent);
    rope(ckv + a.latent, a.rope / 2, 0, a.rope / 2, a.sin + t * a.rope, a.cos + t * a.rope,
         static_cast<Real*>(a.kr_cache) + block * a.kr_block_stride + row * a.rope);
}

template <class Real>
void query_head(const MlaProlog& a, size_t t, size_t head) {
    const size_t half = a.rope / 2, pairs = half / a.rope_groups, group = head / (a.heads / a.rope_groups);
    const float* q = a.q + t * a.w_uq_qr.out + head * (a.nope + 2 * pairs);
    if (a.query)
        absorb(q, static_cast<const Real*>(a.w_uk) + head * a.nope * a.latent, a.nope, a.latent,
               static_cast<Real*>(a.query) + (t * a.heads + head) * a.latent);
    rope(q + a.nope, pairs, group * pairs, half, a.sin + t * a.rope, a.cos + t * a.rope,
         static_cast<Real*>(a.query_rope) + (t * a.heads + head) * a.rope);
}

template <class Real>
void mla_prolog_as(const MlaProlog& a) {
    const size_t width = a.w_uq_qr.in;
    const bool as_is = !a.w_dq.data && !a.gamma_cq && a.alpha_cq == 1.0f;
    if (a.w_dq.data) {
        project(a.x, a.tokens, a.w_dq, a.cq, a.threads);
        round_all<Real>(a.cq, a.tokens * width);
    }
    if (!as_is) {
        rms_norm({.x = a.w_dq.data ? a.cq : a.x,
                  .x_stride = static_cast<ptrdiff_t>(width),
                  .rows = a.tokens,
                  .width = width,
                  .gamma = a.gamma_cq,
                  .eps = a.eps_cq,
                  .alpha = a.alpha_cq,
                  .y = a.cq,
                  .y_stride = static_cast<ptrdiff_t>(width)});
        round_all<Real>(a.cq, a.tokens * width);
    }
    project(as_is ? a.x : a.cq, a.tokens, a.w_uq_qr, a.q, a.threads);
    round_all<Real>(a.q, a.tokens * a.w_uq_qr.out);
    project(a.x, a.tokens, a.w_dkv_kr, a.ckv_kr, a.threads);
    round_all<Real>(a.ckv_kr, a.tokens * a.w_dkv_kr.out);
    // In token order on one thread: of two tokens with one slot, the later stays.
    for (size_t t = 0; t < a.tokens; ++t) cache_token<Real>(a, t);
    // Task by task the tokens of one head, so that its part of w_uk is read once from memory.
    const bool small = a.tokens * a.heads * (a.nope * a.latent + a.rope) < (size_t{1} << 17);
    parallel_for(a.tokens * a.heads, small ? 1 : a.threads,
                 [&](size_t task) { query_head<Real>(a, task % a.tokens, task / a.tokens); });
}

}  // namespace

void mla_prolog(const MlaProlog& a) { a.bf16 ? mla_prolog_as<Bf16>(a) : mla_prolog_as<float>(a); }

}  // namespace decodestep::DECODESTEP_ISA
