#include "mla_prolog/mla_prolog.h"

#include <algorithm>
#include <memory>

#include "core/parallel.h"
#include "elementwise/rms_norm.h"
#include "elementwise/rope.h"
#include "mla_prolog/latent_row.h"
#include "mla_prolog/prolog_head.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

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

    size_t lay_out(Arena arena) {
        const auto sums = [&](const Projection& w, bool wanted) {
            const size_t stride = wanted ? sums_stride(w) : 0;
            return Sums{arena.take<float>(a_.tokens * stride), stride};
        };
        const auto values = [&](size_t stride) { return Values{arena.take<uint8_t>(a_.tokens * stride), stride}; };
        cq_sums_ = sums(a_.w_dq, given(a_.w_dq));
        kv_sums_ = sums(a_.w_dkv_kr, caches_);
        // The rows of a matrix that is not packed are too short within a head for the memory, unless many tokens share
        // them.
        const Columns& up = a_.w_uq_qr.columns;
        q_sums_ = sums(a_.w_uq_qr, a_.w_uq_qr.rows.data || (!up.packed && up.width >= kPanel && blocks_.count == 1));
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
        Target targets[2];
        size_t count = 0;
        const auto add = [&](const Projection& w, Sums sums) {
            if (w.rows.data) return multiply_rows(w.rows, wide_x(), sums);
            targets[count++] = {w.columns, sums, span_of(w.columns)};
        };
        if (given(a_.w_dq)) add(a_.w_dq, cq_sums_);
        if (caches_) add(a_.w_dkv_kr, kv_sums_);
        if (count) multiply_columns(targets, count, x());
    }

    struct Target {
        Columns w;
        Sums sums;
        size_t span;  // outputs of a task

        size_t tasks() const { return ceil_div(w.out, span); }
    };

    // A weight that is not packed is read in rows as long as two tasks for each thread leave them.
    size_t span_of(const Columns& w) const {
        const bool rows = !w.packed && w.width >= kPanel;
        return rows ? std::max(kPanel, round_up(w.out / (2 * a_.threads), kPanel)) : kPanel;
    }

    void multiply_columns(const Target* targets, size_t count, Values x) const {
        size_t tasks = 0;
        for (size_t i = 0; i < count; ++i) tasks += targets[i].tasks();
        parallel_for(blocks_.count * tasks, a_.threads, [&](size_t task) {
            const size_t block = task / tasks, begin = blocks_.begin(block);
            const Target* target = targets;
            for (task %= tasks; task >= target->tasks(); ++target) task -= target->tasks();
            const size_t first = task * target->span;
            multiply({.x = x.row<uint8_t>(begin),
                      .x_stride = x.stride,
                      .tokens = blocks_.size(block),
                      .w = target->w,
                      .first = first,
                      .last = std::min(target->w.out, first + target->span),
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

    void multiply_rows(const RowWeight& w, const float* x, Sums y) const {
        linear({.x = x,
                .x_stride = static_cast<ptrdiff_t>(w.in),
                .tokens = a_.tokens,
                .w = w,
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
        rotate_to_halves(row + a_.latent, a_.rope / 2, 0, a_.rope / 2, a_.sin + t * a_.rope, a_.cos + t * a_.rope, key);
        uint8_t* bytes = cached_.row<uint8_t>(t);
        latent_row(a_, row, key, bytes, bytes + kv_bytes());
    }

    void project_heads() {
        if (a_.w_uq_qr.rows.data) {
            multiply_rows(a_.w_uq_qr.rows, cq_.row<float>(0), q_sums_);
        } else if (q_sums_.stride) {
            const Target target{a_.w_uq_qr.columns, q_sums_, span_of(a_.w_uq_qr.columns)};
            multiply_columns(&target, 1, cq_);
        }
        const size_t work = a_.tokens * a_.heads * (a_.nope * a_.latent + a_.rope);
        const bool small = a_.w_uq_qr.rows.data && work < (size_t{1} << 17);
        const Compressed heads{a_, blocks_, cq_, cq_scale_, q_sums_};
        // Task by task the tokens of one head, so that its weights are read once from memory.
        parallel_for(a_.heads * blocks_.count, small ? 1 : a_.threads,
                     [&](size_t task) { Head<Real>(heads, task).run(); });
    }

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
