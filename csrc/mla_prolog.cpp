#include "mla_prolog.h"

#include <algorithm>
#include <memory>

#include "latent_row.h"
#include "parallel.h"
#include "rms_norm.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

constexpr size_t kTokenBlock = 96;  // tokens whose sums stay in the cache beside the weights of a head
constexpr size_t kPlainSpan = 128;  // outputs of a task where a weight is not packed: long enough runs for the memory
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

bool given(const Projection& w) { return w.columns.data || w.rows.data; }
size_t sums_stride(const Projection& w) { return w.rows.data ? w.rows.out : panel_count(w.columns.out) * kPanel; }

// Bytes of a row of values, of the type that a projection multiplies, in whole groups.
size_t row_bytes_for(const Projection& w, size_t values) {
    return round_up(values * (w.rows.data ? sizeof(float) : value_bytes(w.columns.value)), kGroupBytes);
}

template <class Real>
class Prolog {
  public:
    explicit Prolog(const MlaProlog& a) : a_(a), blocks_(a.tokens) {
        caches_ = a.kv.data && std::any_of(a.slots, a.slots + a.tokens, [](int64_t slot) { return slot >= 0; });
        const size_t size = lay_out(Arena());
        buffer_.reset(new uint8_t[size]);
        lay_out(Arena(buffer_.get()));
    }

    void run() {
        project_tokens();
        const size_t work = a_.tokens * (a_.width + a_.latent);
        parallel_for(a_.tokens, work < 16384 ? 1 : a_.threads, [&](size_t t) { token(t); });
        // In token order on one thread: of two tokens with one slot, the later stays.
        for (size_t t = 0; caches_ && t < a_.tokens; ++t) {
            if (a_.slots[t] < 0) continue;
            store_row(a_.kv, a_.block_size, a_.slots[t], cached_.row<uint8_t>(t));
            if (a_.kr.data) store_row(a_.kr, a_.block_size, a_.slots[t], cached_.row<uint8_t>(t) + kv_bytes());
        }
        project_heads();
    }

  private:
    size_t kv_bytes() const { return a_.kv.width * a_.kv.value_bytes; }
    size_t head_width() const { return a_.nope + a_.rope / a_.rope_groups; }

    size_t lay_out(Arena arena) {
        const auto sums = [&](const Projection& w, bool wanted) {
            const size_t stride = wanted ? sums_stride(w) : 0;
            return Sums{arena.take<float>(a_.tokens * stride), stride};
        };
        const auto values = [&](size_t stride) { return Values{arena.take<uint8_t>(a_.tokens * stride), stride}; };
        cq_sums_ = sums(a_.w_dq, given(a_.w_dq));
        kv_sums_ = sums(a_.w_dkv_kr, caches_);
        q_sums_ = sums(a_.w_uq_qr, a_.w_uq_qr.rows.data);
        cq_ = values(row_bytes_for(a_.w_uq_qr, a_.width));
        cached_ = values(caches_ ? kv_bytes() + a_.kr.width * a_.kr.value_bytes : 0);
        cq_scale_ = arena.take<float>(a_.tokens);
        // A copy of x only where its rows end amid a group, or as float32 for weights in a block format.
        const bool rows = (a_.w_dq.rows.data) || (caches_ && a_.w_dkv_kr.rows.data);
        const size_t item = a_.x_scale ? 1 : sizeof(Real);
        wide_x_ = values(rows && sizeof(Real) != sizeof(float) ? a_.hidden * sizeof(float) : 0);
        whole_x_ = values(a_.hidden * item % kGroupBytes ? round_up(a_.hidden * item, kGroupBytes) : 0);
        return arena.size();
    }

    Values x() const {
        const size_t row = a_.hidden * (a_.x_scale ? 1 : sizeof(Real));
        auto* data = static_cast<uint8_t*>(const_cast<void*>(a_.x));
        if (!whole_x_.stride) return {data, row};
        for (size_t t = 0; t < a_.tokens; ++t) {
            std::memset(whole_x_.row<uint8_t>(t) + row, 0, whole_x_.stride - row);
            std::memcpy(whole_x_.row<uint8_t>(t), data + t * row, row);
        }
        return whole_x_;
    }

    // x times w_dq and w_dkv_kr in one sweep.
    void project_tokens() {
        struct Target {
            const Projection* w;
            Sums sums;
            size_t span, tasks;
        };
        Target targets[2];
        size_t count = 0, tasks = 0;
        const auto add = [&](const Projection& w, Sums sums) {
            if (w.rows.data) return multiply_rows(w.rows, wide_x(), sums);
            const size_t span = w.columns.packed ? kPanel : kPlainSpan;
            targets[count] = {&w, sums, span, ceil_div(w.columns.out, span)};
            tasks += targets[count++].tasks;
        };
        if (given(a_.w_dq)) add(a_.w_dq, cq_sums_);
        if (caches_) add(a_.w_dkv_kr, kv_sums_);
        if (!tasks) return;
        const Values x = this->x();
        parallel_for(blocks_.count * tasks, a_.threads, [&](size_t task) {
            const size_t block = task / tasks, begin = blocks_.begin(block);
            const Target* target = targets;
            for (task %= tasks; task >= target->tasks; ++target) task -= target->tasks;
            const Columns& w = target->w->columns;
            const size_t first = task * target->span;
            multiply({.x = x.row<uint8_t>(begin),
                      .x_stride = x.stride,
                      .tokens = blocks_.size(block),
                      .w = w,
                      .first = first,
                      .last = std::min(w.out, first + target->span),
                      .y = target->sums.data + begin * target->sums.stride + first,
                      .y_stride = target->sums.stride,
                      .scratch = Arena(thread_scratch(kProductScratch / sizeof(float) + kLine)).take<uint8_t>(0)});
        });
    }

    const float* wide_x() const {
        if (!wide_x_.stride) return static_cast<const float*>(a_.x);
        widen_all(static_cast<const Real*>(a_.x), a_.tokens * a_.hidden, wide_x_.row<float>(0));
        return wide_x_.row<float>(0);
    }

    void multiply_rows(const Rows& w, const float* x, Sums y) const {
        linear({.x = x,
                .x_stride = static_cast<ptrdiff_t>(w.in),
                .tokens = a_.tokens,
                .in = w.in,
                .out = w.out,
                .w = w.data,
                .w_stride = w.stride,
                .format = w.format,
                .y = y.data,
                .y_stride = static_cast<ptrdiff_t>(y.stride),
                .threads = a_.threads});
    }

    // A row of sums as the values that they stand for.
    void finish(const Projection& w, Sums sums, size_t t, size_t outputs, float* out) const {
        const float* row = sums.data + t * sums.stride;
        if (w.scale) return scaled(row, a_.x_scale[t], w.scale, outputs, out);
        for (size_t i = 0; i < outputs; ++i) out[i] = rounded<Real>(row[i]);
    }

    static DECODESTEP_INLINE void scaled(const float* sums, float token, const float* scale, size_t n, float* out) {
        for (size_t i = 0; i < n; ++i)
            out[i] = static_cast<float>(static_cast<int32_t>(bits_of(sums[i]))) * token * scale[i];
    }

    static void norm(float* row, size_t width, const float* gamma, float eps, float alpha) {
        rms_norm({.x = row,
                  .x_stride = 0,
                  .rows = 1,
                  .width = width,
                  .gamma = gamma,
                  .eps = eps,
                  .alpha = alpha,
                  .y = row,
                  .y_stride = 0});
    }

    void token(size_t t) {
        Arena arena(thread_scratch(a_.width + a_.latent + 2 * a_.rope + 4 * kLine));
        query_norm(t, arena.take<float>(a_.width));
        if (caches_ && a_.slots[t] >= 0) latent(t, arena.take<float>(a_.latent + a_.rope), arena.take<Real>(a_.rope));
    }

    void query_norm(size_t t, float* row) {
        if (given(a_.w_dq))
            finish(a_.w_dq, cq_sums_, t, a_.width, row);
        else
            widen_all(static_cast<const Real*>(a_.x) + t * a_.hidden, a_.hidden, row);
        norm(row, a_.width, a_.gamma_cq, a_.eps_cq, a_.alpha_cq);
        uint8_t* out = cq_.row<uint8_t>(t);
        std::memset(out + cq_.stride - kGroupBytes, 0, kGroupBytes);
        size_t item = sizeof(Real);
        if (a_.w_uq_qr.scale) {
            for (size_t i = 0; a_.smooth && i < a_.width; ++i) row[i] *= a_.smooth[i];
            cq_scale_[t] = quantise_row(row, a_.width, false, reinterpret_cast<int8_t*>(out));
            if (a_.norm_scale) a_.norm_scale[t] = cq_scale_[t];
            item = 1;
        } else if (a_.w_uq_qr.rows.data) {
            for (size_t i = 0; i < a_.width; ++i) reinterpret_cast<float*>(out)[i] = rounded<Real>(row[i]);
            if (a_.query_norm) put_all(row, a_.width, static_cast<Real*>(a_.query_norm) + t * a_.width);
            return;
        } else {
            put_all(row, a_.width, reinterpret_cast<Real*>(out));
        }
        if (a_.query_norm)
            std::memcpy(static_cast<uint8_t*>(a_.query_norm) + t * a_.width * item, out, a_.width * item);
    }

    void latent(size_t t, float* row, Real* key) const {
        finish(a_.w_dkv_kr, kv_sums_, t, a_.latent + a_.rope, row);
        norm(row, a_.latent, a_.gamma_ckv, a_.eps_ckv, a_.alpha_ckv);
        rotate(row + a_.latent, a_.rope / 2, 0, a_.rope / 2, a_.sin + t * a_.rope, a_.cos + t * a_.rope, key);
        uint8_t* bytes = cached_.row<uint8_t>(t);
        latent_row(a_, row, key, bytes, bytes + kv_bytes());
    }

    void project_heads() {
        if (a_.w_uq_qr.rows.data) multiply_rows(a_.w_uq_qr.rows, cq_.row<float>(0), q_sums_);
        const size_t work = a_.tokens * a_.heads * (a_.nope * a_.latent + a_.rope);
        const bool small = a_.w_uq_qr.rows.data && work < (size_t{1} << 17);
        // Task by task the tokens of one head, so that its weights are read once from memory.
        parallel_for(a_.heads * blocks_.count, small ? 1 : a_.threads,
                     [&](size_t task) { Head(*this, task / blocks_.count, task % blocks_.count).run(); });
    }

    // One head of a block of tokens.
    struct Head {
        const Prolog& p;
        const MlaProlog& a;
        size_t head, begin, tokens;
        uint8_t* scratch;
        Sums q, query;  // sums of w_uq_qr and of w_uk
        Values nope;
        float* row;

        Head(const Prolog& prolog, size_t head, size_t block)
            : p(prolog), a(prolog.a_), head(head), begin(p.blocks_.begin(block)), tokens(p.blocks_.size(block)) {
            const size_t size = lay_out(Arena());
            lay_out(Arena(thread_scratch(ceil_div(size, sizeof(float)))));
        }

        size_t lay_out(Arena arena) {
            const size_t most = p.blocks_.largest(), first = head * p.head_width();
            const size_t stride =
                a.w_uq_qr.rows.data ? 0 : sums_width(a.w_uq_qr.columns, first, first + p.head_width());
            scratch = arena.take<uint8_t>(kProductScratch);
            q = {arena.take<float>(most * stride), stride};
            const size_t nope_bytes = round_up(a.nope * sizeof(Real), kGroupBytes);
            nope = {arena.take<uint8_t>(most * nope_bytes), nope_bytes};
            const size_t latent = panel_count(a.latent) * kPanel;
            query = {arena.take<float>(most * latent), latent};
            row = arena.take<float>(std::max(p.head_width(), a.latent));
            return arena.size();
        }

        void run() {
            const float* sums = up_projected();
            for (size_t t = 0; t < tokens; ++t) split(t, sums + t * q.stride);
            if (!a.query) return;
            multiply({.x = nope.data,
                      .x_stride = nope.stride,
                      .tokens = tokens,
                      .w = head_of_w_uk(),
                      .first = 0,
                      .last = a.latent,
                      .y = query.data,
                      .y_stride = query.stride,
                      .scratch = scratch});
            for (size_t t = 0; t < tokens; ++t) put_query(t);
        }

        Columns head_of_w_uk() const {
            Columns w = a.w_uk;
            w.data = static_cast<const uint8_t*>(w.data) + static_cast<ptrdiff_t>(head) * a.w_uk_stride;
            return w;
        }

        // The head's sums for the first token; those of the next are q.stride behind.
        const float* up_projected() {
            const size_t first = head * p.head_width();
            if (a.w_uq_qr.rows.data) {
                q.stride = p.q_sums_.stride;
                return p.q_sums_.data + begin * q.stride + first;
            }
            const Columns& w = a.w_uq_qr.columns;
            multiply({.x = p.cq_.template row<uint8_t>(begin),
                      .x_stride = p.cq_.stride,
                      .tokens = tokens,
                      .w = w,
                      .first = first,
                      .last = first + p.head_width(),
                      .y = q.data,
                      .y_stride = q.stride,
                      .scratch = scratch});
            return q.data + sums_before(w, first);
        }

        // The nope part as the input of w_uk, the rope part to its result. That of an int8 product is not rounded.
        void split(size_t t, const float* sums) {
            const size_t width = p.head_width(), half = a.rope / 2, pairs = half / a.rope_groups;
            if (a.w_uq_qr.scale) {
                scaled(sums, p.cq_scale_[begin + t], a.w_uq_qr.scale + head * width, width, row);
            } else {
                for (size_t i = 0; i < width; ++i) row[i] = rounded<Real>(sums[i]);
            }
            if (nope.stride) {
                std::memset(nope.row<uint8_t>(t) + nope.stride - kGroupBytes, 0, kGroupBytes);
                put_all(row, a.nope, nope.template row<Real>(t));
            }
            const size_t group = head / (a.heads / a.rope_groups), at = (begin + t) * a.rope;
            rotate(row + a.nope, pairs, group * pairs, half, a.sin + at, a.cos + at, rope_of(t));
        }

        size_t place(size_t t) const { return (begin + t) * a.heads + head; }
        Real* rope_of(size_t t) const { return static_cast<Real*>(a.query_rope) + place(t) * a.rope; }

        void put_query(size_t t) const {
            const float* sums = query.data + t * query.stride;
            if (!a.query_scale) return put_all(sums, a.latent, static_cast<Real*>(a.query) + place(t) * a.latent);
            for (size_t i = 0; i < a.latent; ++i) row[i] = rounded<Real>(sums[i]);
            int8_t* out = static_cast<int8_t*>(a.query) + place(t) * a.latent;
            const float scale = quantise_row(row, a.latent, a.half_away, out);
            a.query_scale[place(t)] = scale;
            // The rope in units of the int8 query. The rope of a head that is nothing, where it is nothing too, stays.
            Real* rope = rope_of(t);
            for (size_t i = 0; i < a.rope; ++i) {
                const float value = widen(rope[i]);
                put(scale == 0.0f && value == 0.0f ? 0.0f : value * a.ckv_scale[0] / scale, rope + i);
            }
        }
    };

    const MlaProlog& a_;
    Blocks blocks_;
    bool caches_;
    std::unique_ptr<uint8_t[]> buffer_;
    Sums cq_sums_, kv_sums_, q_sums_;
    Values cq_, cached_, wide_x_, whole_x_;
    float* cq_scale_;
};

}  // namespace

void mla_prolog(const MlaProlog& a) {
    if (a.tokens == 0) return;
    a.bf16 ? Prolog<Bf16>(a).run() : Prolog<float>(a).run();
}

}  // namespace decodestep::DECODESTEP_ISA
