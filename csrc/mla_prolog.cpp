#include "mla_prolog.h"

#include "parallel.h"
#include "rms_norm.h"
#include "simd.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

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
void rope(const float* x, size_t pairs, size_t first, size_t half, const float* sin, const float* cos, float* out) {
    if (pairs < half) std::memset(out, 0, 2 * half * sizeof(float));
    for (size_t i = 0; i < pairs; ++i) {
        const size_t j = first + i;
        const float even = x[2 * i], odd = x[2 * i + 1];
        out[j] = even * cos[j] - odd * sin[j];
        out[half + j] = odd * cos[half + j] + even * sin[half + j];
    }
}

// out[h] = sum over d, ascending, of x[d] * w[d, h].
void absorb(const float* x, const float* w, size_t nope, size_t latent, float* out) {
    constexpr size_t kWide = 4;
    size_t h = 0;
    for (; h + kWide * kLanes <= latent; h += kWide * kLanes) {
        f32x16 total[kWide];
        for (auto& t : total) t = broadcast(0.0f);
        for (size_t d = 0; d < nope; ++d) {
            const f32x16 value = broadcast(x[d]);
#pragma GCC unroll 4
            for (size_t i = 0; i < kWide; ++i) total[i] = fma(value, load(w + d * latent + h + i * kLanes), total[i]);
        }
        for (size_t i = 0; i < kWide; ++i) store(out + h + i * kLanes, total[i]);
    }
    for (; h < latent; h += kLanes) {
        const size_t lanes = latent - h < kLanes ? latent - h : kLanes;
        f32x16 total = broadcast(0.0f);
        for (size_t d = 0; d < nope; ++d) total = fma(broadcast(x[d]), load_first(w + d * latent + h, lanes), total);
        store_first(out + h, total, lanes);
    }
}

void cache_token(const MlaProlog& a, size_t t) {
    if (a.slots[t] < 0) return;
    const size_t block = a.slots[t] / a.block_size, row = a.slots[t] % a.block_size;
    const float* ckv = a.ckv_kr + t * (a.latent + a.rope);
    rms_norm({.x = ckv,
              .x_stride = 0,
              .rows = 1,
              .width = a.latent,
              .gamma = a.gamma_ckv,
              .eps = a.eps_ckv,
              .alpha = a.alpha_ckv,
              .y = a.kv_cache + block * a.kv_block_stride + row * a.latent,
              .y_stride = 0});
    rope(ckv + a.latent, a.rope / 2, 0, a.rope / 2, a.sin + t * a.rope, a.cos + t * a.rope,
         a.kr_cache + block * a.kr_block_stride + row * a.rope);
}

void query_head(const MlaProlog& a, size_t t, size_t head) {
    const size_t half = a.rope / 2, pairs = half / a.rope_groups, group = head / (a.heads / a.rope_groups);
    const float* q = a.q + t * a.w_uq_qr.out + head * (a.nope + 2 * pairs);
    if (a.query)
        absorb(q, a.w_uk + head * a.nope * a.latent, a.nope, a.latent, a.query + (t * a.heads + head) * a.latent);
    rope(q + a.nope, pairs, group * pairs, half, a.sin + t * a.rope, a.cos + t * a.rope,
         a.query_rope + (t * a.heads + head) * a.rope);
}

}  // namespace

void mla_prolog(const MlaProlog& a) {
    const size_t width = a.w_uq_qr.in;
    const bool as_is = !a.w_dq.data && !a.gamma_cq && a.alpha_cq == 1.0f;
    if (a.w_dq.data) project(a.x, a.tokens, a.w_dq, a.cq, a.threads);
    if (!as_is)
        rms_norm({.x = a.w_dq.data ? a.cq : a.x,
                  .x_stride = static_cast<ptrdiff_t>(width),
                  .rows = a.tokens,
                  .width = width,
                  .gamma = a.gamma_cq,
                  .eps = a.eps_cq,
                  .alpha = a.alpha_cq,
                  .y = a.cq,
                  .y_stride = static_cast<ptrdiff_t>(width)});
    project(as_is ? a.x : a.cq, a.tokens, a.w_uq_qr, a.q, a.threads);
    project(a.x, a.tokens, a.w_dkv_kr, a.ckv_kr, a.threads);
    // In token order on one thread: of two tokens with one slot, the later stays.
    for (size_t t = 0; t < a.tokens; ++t) cache_token(a, t);
    const bool small = a.tokens * a.heads * (a.nope * a.latent + a.rope) < (size_t{1} << 17);
    parallel_for(a.tokens * a.heads, small ? 1 : a.threads,
                 [&](size_t task) { query_head(a, task / a.heads, task % a.heads); });
}

}  // namespace decodestep::DECODESTEP_ISA
