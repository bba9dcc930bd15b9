// The MLA prolog as stages of independent tasks, for the operator and for kernels that run it as some of their stages:
// PrologStage in order, each with tasks(stage) tasks that may run in any order, on any threads.
#pragma once

#include <algorithm>
#include <memory>

#include "elementwise/rms_norm.h"
#include "elementwise/rope.h"
#include "mla_prolog/arena.h"
#include "mla_prolog/cache_rows.h"
#include "mla_prolog/mla_prolog.h"
#include "mla_prolog/projection_tasks.h"
#include "mla_prolog/prolog_head.h"

namespace decodestep::DECODESTEP_BUILD {

enum class PrologStage {
    read_tokens,      // x in the form in which the products read it
    project_tokens,   // x times w_dq and w_dkv_kr
    norm_tokens,      // the compressed query, normed; the cache rows
    write_caches,     // one task
    project_queries,  // the compressed queries times w_uq_qr, if all heads are multiplied at once
    heads             // w_uq_qr, if each head multiplies its part; RoPE; w_uk
};
constexpr PrologStage kPrologStages[] = {PrologStage::read_tokens,     PrologStage::project_tokens,
                                         PrologStage::norm_tokens,     PrologStage::write_caches,
                                         PrologStage::project_queries, PrologStage::heads};

// T: Bf16 or float, the type of what is neither int8 nor a scale. `call` must outlive the plan; tokens > 0.
template <class T>
class PrologPlan {
  public:
    explicit PrologPlan(const MlaProlog& call)
        : a_(call),
          blocks_(call.tokens),
          caches_(caches_anything(call)),
          all_heads_(multiplies_all_heads(call, blocks_)),
          arrays_(*this),
          down_query_(call.w_dq, arrays_.x, float_rows_of_x(), blocks_, arrays_.down_query, call.threads),
          down_latent_(caches_ ? ProjectionTasks(call.w_dkv_kr, arrays_.x, float_rows_of_x(), blocks_,
                                                 arrays_.down_latent, call.threads)
                               : ProjectionTasks()),
          up_query_(all_heads_ ? ProjectionTasks(call.w_uq_qr, arrays_.queries, arrays_.float_queries, blocks_,
                                                 arrays_.up_query, call.threads)
                               : ProjectionTasks()),
          queries_{call, blocks_, arrays_.queries, arrays_.compressed_scale, all_heads_, arrays_.up_query} {}

    size_t tasks(PrologStage stage) const {
        switch (stage) {
            case PrologStage::read_tokens:
                return reads_tokens() ? a_.tokens : 0;
            case PrologStage::project_tokens:
                return down_query_.count() + down_latent_.count();
            case PrologStage::norm_tokens:
                return a_.tokens;
            case PrologStage::write_caches:
                return caches_ ? 1 : 0;
            case PrologStage::project_queries:
                return up_query_.count();
            case PrologStage::heads:
                return a_.heads * blocks_.count;
        }
        return 0;
    }

    // 1 if the stage takes less time than waking other threads, else those of the call.
    int threads(PrologStage stage) const {
        size_t work = kWorthThreads;
        if (stage == PrologStage::read_tokens) work = a_.tokens * a_.hidden / 4;
        if (stage == PrologStage::norm_tokens) work = a_.tokens * (a_.width + a_.latent);
        if (stage == PrologStage::heads && a_.w_uq_qr.reads_floats())
            work = a_.tokens * a_.heads * (a_.nope * a_.latent + a_.rope) / 8;
        return work < kWorthThreads ? 1 : a_.threads;
    }

    void run(PrologStage stage, size_t task) const {
        switch (stage) {
            case PrologStage::read_tokens:
                return read_token(task);
            case PrologStage::project_tokens:
                return task < down_query_.count() ? down_query_.run(task)
                                                  : down_latent_.run(task - down_query_.count());
            case PrologStage::norm_tokens:
                return norm_token(task);
            case PrologStage::write_caches:
                return write_caches();
            case PrologStage::project_queries:
                return up_query_.run(task);
            case PrologStage::heads:
                return HeadTask<T>(queries_, task).run();
        }
    }

  private:
    static constexpr size_t kWorthThreads = 16384;

    // What the stages pass to each other, in one buffer.
    struct Arrays {
        std::unique_ptr<uint8_t[]> buffer;
        TokenSums down_query{}, down_latent{}, up_query{};
        ColumnTokens x, queries;  // of column weights
        TokenRows float_x{}, float_queries{}, cache_rows{};
        float* compressed_scale = nullptr;

        explicit Arrays(const PrologPlan& plan) {
            const auto allocate = [&](size_t bytes) {
                buffer.reset(new uint8_t[bytes]);
                return buffer.get();
            };
            place_arrays(allocate, [&](Arena& arena) { place(plan, arena); });
        }

        void place(const PrologPlan& plan, Arena& arena) {
            const MlaProlog& a = plan.a_;
            const auto sums = [&](const Projection& w, bool used) {
                const size_t stride = used ? ProjectionTasks::sums_stride(w) : 0;
                return TokenSums{arena.take<float>(a.tokens * stride), stride};
            };
            const auto rows = [&](size_t stride, bool used) {
                return used ? TokenRows{arena.take<uint8_t>(a.tokens * stride), stride} : TokenRows{};
            };
            down_query = sums(a.w_dq, true);
            down_latent = sums(a.w_dkv_kr, plan.caches_);
            up_query = sums(a.w_uq_qr, plan.all_heads_);
            const auto columns = [&](const Projection& w, size_t in, bool used) {
                if (!used) return ColumnTokens();
                const WeightType value = w.columns.value;
                return ColumnTokens(value, a.tokens, in, arena.take<uint8_t>(ColumnTokens::bytes(value, a.tokens, in)));
            };
            x = columns(a.w_dq.reads_floats() ? a.w_dkv_kr : a.w_dq, a.hidden, plan.projects_x(false));
            queries = columns(a.w_uq_qr, a.width, !a.w_uq_qr.reads_floats());
            float_queries = rows(a.width * sizeof(float), a.w_uq_qr.reads_floats());
            cache_rows = rows(plan.kv_bytes() + a.kr.width * a.kr.value_bytes, plan.caches_);
            compressed_scale = arena.take<float>(a.tokens);
            float_x = rows(a.hidden * sizeof(float), plan.widens_x());
        }
    };

    static bool caches_anything(const MlaProlog& a) {
        return a.kv.data && std::any_of(a.slots, a.slots + a.tokens, [](int64_t slot) { return slot >= 0; });
    }

    // GGUF blocks have no part for a head. In an unpacked matrix a head's part of a row is too short to stream; with
    // several blocks of tokens it pays all the same, as they find it in the cache.
    static bool multiplies_all_heads(const MlaProlog& a, const TokenBlocks& blocks) {
        return a.w_uq_qr.reads_floats() || (a.w_uq_qr.columns.layout == ColumnLayout::rows && blocks.count == 1);
    }

    bool projects_x(bool floats) const {
        return a_.w_dq.reads_floats() == floats || (caches_ && a_.w_dkv_kr.reads_floats() == floats);
    }
    bool widens_x() const { return projects_x(true) && sizeof(T) != sizeof(float); }
    bool reads_tokens() const {
        return projects_x(false) || widens_x() || down_query_.reads_tokens() || down_latent_.reads_tokens();
    }

    size_t kv_bytes() const { return a_.kv.width * a_.kv.value_bytes; }
    const T* real_x(size_t t) const { return static_cast<const T*>(a_.x) + t * a_.hidden; }

    // x as GGUF blocks read it: the caller's memory, unless that has to be widened.
    TokenRows float_rows_of_x() const {
        if (widens_x()) return arrays_.float_x;
        return {static_cast<uint8_t*>(const_cast<void*>(a_.x)), a_.hidden * sizeof(float)};
    }

    void read_token(size_t t) const {
        if (projects_x(false)) {
            if (a_.w_dq.code() == WeightType::i8)
                arrays_.x.read(t, static_cast<const int8_t*>(a_.x) + t * a_.hidden);
            else if (a_.w_dq.code() == WeightType::f8)
                read_float8_token(t);
            else
                arrays_.x.read(t, real_x(t));
        }
        if (widens_x()) convert(real_x(t), a_.hidden, arrays_.float_x.template row<float>(t));
        down_query_.read(t);
        down_latent_.read(t);
    }

    void read_float8_token(size_t t) const {
        const ThreadScratch scratch(ceil_div(a_.hidden * sizeof(Bf16), sizeof(float)));
        Bf16* values = reinterpret_cast<Bf16*>(scratch.data());
        const uint8_t* exponents = a_.x_exponents ? a_.x_exponents + t * (a_.hidden / kScaledBlock) : nullptr;
        read_float8(static_cast<const F8*>(a_.x) + t * a_.hidden, a_.hidden, exponents, values);
        arrays_.x.read(t, values);
    }

    // The values of a row of sums of x.
    void values_of(const Projection& w, TokenSums sums, size_t t, size_t outputs, float* out) const {
        product_values<T>(w, sums.row(t), a_.x_scale ? a_.x_scale[t] : 1.0f, 0, outputs, out);
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
                  .y_stride = 0,
                  .threads = 1});
    }

    void norm_token(size_t t) const {
        const ThreadScratch scratch(3 * a_.width + a_.latent + 2 * a_.rope + 5 * kCacheLine);
        Arena arena(scratch.data());
        norm_query(t, arena.take<float>(a_.width), arena.take<float>(2 * a_.width));
        if (caches_ && a_.slots[t] >= 0) norm_latent(t, arena.take<float>(a_.latent + a_.rope), arena.take<T>(a_.rope));
    }

    // stored: memory for the row as it is stored.
    void norm_query(size_t t, float* row, void* stored) const {
        values_of(a_.w_dq, arrays_.down_query, t, a_.width, row);
        norm(row, a_.width, a_.gamma_cq, a_.eps_cq, a_.alpha_cq);
        if (a_.w_uq_qr.quantised()) return store_quantised_query(t, row, stored);
        T* values = static_cast<T*>(stored);
        convert(row, a_.width, values);
        copy_query_norm(t, values);
        if (a_.w_uq_qr.reads_floats()) {
            convert(values, a_.width, arrays_.float_queries.template row<float>(t));
            up_query_.read(t);
        } else {
            arrays_.queries.read(t, values);
        }
    }

    void store_quantised_query(size_t t, float* row, void* stored) const {
        for (size_t i = 0; a_.smooth && i < a_.width; ++i) row[i] *= a_.smooth[i];
        if (a_.float8) return store_float8_query(t, row, static_cast<Bf16*>(stored));
        auto* values = static_cast<int8_t*>(stored);
        store_scale(t, quantise_row(row, a_.width, false, values));
        copy_query_norm(t, values);
        arrays_.queries.read(t, values);
    }

    // values: memory for the row as it is multiplied, and behind that as it is stored.
    void store_float8_query(size_t t, float* row, Bf16* values) const {
        F8* q = reinterpret_cast<F8*>(values + a_.width);
        uint8_t* exponents = nullptr;
        if (a_.w_uq_qr.scale) {
            store_scale(t, quantise_float8_row(row, a_.width, q));
        } else {
            exponents = reinterpret_cast<uint8_t*>(q + a_.width);
            for (size_t i = 0; i < a_.width; ++i) row[i] = rounded<T>(row[i]);
            quantise_float8_blocks(row, a_.width, q, exponents);
            const size_t blocks = a_.width / kScaledBlock;
            if (a_.norm_exponents) std::memcpy(a_.norm_exponents + t * blocks, exponents, blocks);
        }
        copy_query_norm(t, q);
        read_float8(q, a_.width, exponents, values);
        arrays_.queries.read(t, values);
    }

    void store_scale(size_t t, float scale) const {
        arrays_.compressed_scale[t] = scale;
        if (a_.norm_scale) a_.norm_scale[t] = scale;
    }

    template <class V>
    void copy_query_norm(size_t t, const V* values) const {
        if (a_.query_norm) std::memcpy(static_cast<V*>(a_.query_norm) + t * a_.width, values, a_.width * sizeof(V));
    }

    void norm_latent(size_t t, float* row, T* key) const {
        values_of(a_.w_dkv_kr, arrays_.down_latent, t, a_.latent + a_.rope, row);
        norm(row, a_.latent, a_.gamma_ckv, a_.eps_ckv, a_.alpha_ckv);
        rotate_to_halves(row + a_.latent, a_.rope / 2, a_.sin + t * a_.rope, a_.cos + t * a_.rope, key);
        uint8_t* bytes = arrays_.cache_rows.template row<uint8_t>(t);
        encode_cache_rows(a_, row, key, bytes, bytes + kv_bytes());
    }

    // In token order: of several tokens with one slot the last is kept.
    void write_caches() const {
        for (size_t t = 0; t < a_.tokens; ++t) {
            if (a_.slots[t] < 0) continue;
            const uint8_t* row = arrays_.cache_rows.template row<uint8_t>(t);
            write_cache_row(a_.kv, a_.block_size, a_.slots[t], row);
            if (a_.kr.data) write_cache_row(a_.kr, a_.block_size, a_.slots[t], row + kv_bytes());
        }
    }

    const MlaProlog& a_;
    const TokenBlocks blocks_;
    const bool caches_, all_heads_;
    const Arrays arrays_;
    const ProjectionTasks down_query_, down_latent_, up_query_;
    const CompressedQueries queries_;
};

}  // namespace decodestep::DECODESTEP_BUILD
