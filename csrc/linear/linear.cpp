#include "linear/linear.h"

#include <algorithm>
#include <span>
#include <vector>

#include "core/division.h"
#include "core/parallel.h"
#include "core/thread_scratch.h"
#include "linear/blocked_rows.h"
#include "linear/linear_tasks.h"
#include "linear/row_blocks.h"
#include "linear/with_format.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

// Whether a row consists of cache lines of plain values, so that reading them is the whole cost of a product.
template <Format F>
constexpr bool is_dense = kPieces<F> == 1 && kBlockBytes<F> % 64 == 0;

// The prefetches at piece b of R rows starting at w. Rows are short, and the hardware prefetcher restarts at the end of
// each; for dense rows this prefetches the same position of the next R rows.
template <Format F, int R>
DECODESTEP_INLINE void prefetch_rows(const uint8_t* w, size_t w_stride, size_t b) {
    constexpr size_t bytes = kBlockBytes<F> / kPieces<F>, ahead = 4096;
    if constexpr (is_dense<F>)
        for (int r = 0; r < R; ++r) prefetch(w + (R + r) * w_stride + b * bytes, bytes);
    else
        prefetch(w + ahead + b * R * bytes, R * bytes);
}

// R outputs times T tokens, one accumulator each: every weight is widened once, every activation loaded once.
template <Format F, int R, int T, bool prefetches = true>
DECODESTEP_INLINE void tile(const uint8_t* w, size_t w_stride, const float* x, ptrdiff_t x_stride, size_t in, float* y,
                            ptrdiff_t y_stride) {
    f32x16 total[R][T];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) total[r][t] = broadcast(0.0f);
    const size_t blocks = in / kLoadValues;
    [[maybe_unused]] const size_t rest = in % kLoadValues;
    for (size_t b = 0; b < blocks; ++b) {
        f32x16 w0[R], w1[R];
        if constexpr (prefetches) prefetch_rows<F, R>(w, w_stride, b);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) load_piece<F>(w + r * w_stride, b, w0[r], w1[r]);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
            const float* block = x + t * x_stride + b * kLoadValues;
            const f32x16 x0 = load(block), x1 = load(block + 16);
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) total[r][t] = fma(w1[r], x1, fma(w0[r], x0, total[r][t]));
        }
    }
    if constexpr (traits(F).is_dense())  // rows of other formats are whole blocks
        for (int t = 0; rest > 0 && t < T; ++t) {
            float block[kLoadValues] = {};
            std::memcpy(block, x + t * x_stride + blocks * kLoadValues, rest * sizeof(float));
            for (int r = 0; r < R; ++r) {
                f32x16 w0, w1;
                load_tail<F>(w + r * w_stride, blocks, rest, w0, w1);
                total[r][t] = fma(w1, load(block + 16), fma(w0, load(block), total[r][t]));
            }
        }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) y[t * y_stride + r] = sum(total[r][t]);
}

// Eight vectors hold four accumulators beside the weights and activations.
constexpr size_t kRowTileTokens = kManyRegisters ? 4 : 2;
constexpr size_t kRowTileOutputs = 4 / (4 / kRowTileTokens);
// Dense rows are plain values, so that reading them is most of the cost of a product with few tokens: a core reads
// memory faster in four streams than in one or two.
constexpr size_t kRowStreams = 4;
// As many tokens as have their sums in registers beside the four rows.
constexpr size_t kStreamTokens = kManyRegisters ? 4 : 1;

constexpr bool are_streamed(Format format, size_t tokens) {
    return traits(format).is_dense() && (tokens == 1 || kStreamTokens > 1);
}

// Outputs [n, n + kRowTileOutputs) of all tokens.
template <Format F>
DECODESTEP_INLINE void all_tokens(const Linear& a, size_t n) {
    size_t t = 0;
    const float* x = a.x;
    float* y = a.y + n;
    for (; t + kRowTileTokens <= a.tokens;
         t += kRowTileTokens, x += kRowTileTokens * a.x_stride, y += kRowTileTokens * a.y_stride)
        tile<F, kRowTileOutputs, kRowTileTokens>(a.w.row(n), a.w.stride, x, a.x_stride, a.w.in, y, a.y_stride);
    for (; t < a.tokens; ++t, x += a.x_stride, y += a.y_stride)
        tile<F, kRowTileOutputs, 1>(a.w.row(n), a.w.stride, x, a.x_stride, a.w.in, y, a.y_stride);
}

// kRowStreams outputs, `distance` rows apart, of T tokens from `t` on.
template <Format F, size_t T>
DECODESTEP_INLINE void stream_tile(const Linear& a, size_t n, size_t distance, size_t t) {
    float y[T][kRowStreams];
    tile<F, kRowStreams, T, false>(a.w.row(n), distance * a.w.stride, a.x + static_cast<ptrdiff_t>(t) * a.x_stride,
                                   a.x_stride, a.w.in, y[0], kRowStreams);
    for (size_t i = 0; i < T; ++i)
        for (size_t s = 0; s < kRowStreams; ++s)
            a.y[static_cast<ptrdiff_t>(t + i) * a.y_stride + static_cast<ptrdiff_t>(n + s * distance)] = y[i][s];
}

// Outputs with dense rows, starting at `first`: as many as fill equal streams before `last`; returns the next output.
// Each stream reads its rows from end to end, so that the hardware prefetcher follows it from row to row. Reading rows
// side by side would give short streams, which conflict in the cache if a row's length is a multiple of a page.
template <Format F>
DECODESTEP_INLINE size_t stream_rows(const Linear& a, size_t first, size_t last) {
    const size_t rows = (last - first) / kRowStreams;
    for (size_t n = first; n < first + rows; ++n) {
        size_t t = 0;
        for (; t + kStreamTokens <= a.tokens; t += kStreamTokens) stream_tile<F, kStreamTokens>(a, n, rows, t);
        if constexpr (kStreamTokens == 4) {
            if (a.tokens - t == 3) stream_tile<F, 3>(a, n, rows, t);
            if (a.tokens - t == 2) stream_tile<F, 2>(a, n, rows, t);
            if (a.tokens - t == 1) stream_tile<F, 1>(a, n, rows, t);
        }
    }
    return first + rows * kRowStreams;
}

// Whether this many tokens are multiplied in blocks: where widening the rows once for all of them pays for copying the
// tokens.
constexpr bool are_many(Format format, size_t tokens) {
    const bool is_widened_soon = format == Format::f32 || (kStreamTokens > 1 && traits(format).is_dense());
    return tokens > (is_widened_soon ? 2 : 1) * kRowTileTokens;
}
constexpr size_t kLeastGroups = 3;  // of rows in a task: the first group of a task has not been prefetched

// Outputs [first, last) of few tokens.
template <Format F>
void multiply_rows(const Linear& a, size_t first, size_t last) {
    size_t n = first;
    if constexpr (is_dense<F>)
        if (are_streamed(F, a.tokens)) n = stream_rows<F>(a, first, last);
    for (; n + kRowTileOutputs <= last; n += kRowTileOutputs) all_tokens<F>(a, n);
    for (; n < last; ++n)
        for (size_t t = 0; t < a.tokens; ++t)
            tile<F, 1, 1>(a.w.row(n), a.w.stride, a.x + static_cast<ptrdiff_t>(t) * a.x_stride, a.x_stride, a.w.in,
                          a.y + static_cast<ptrdiff_t>(t) * a.y_stride + n, a.y_stride);
}

// y[t, c] = sum over n of x[t, n] * w[n, c], for columns [first, last), where `first` is a multiple of kLoadValues. A
// column's sum ascends in n. One token reads row after row, as one stream; for several tokens, four rows at a time are
// added to each loaded sum.
template <Format F>
void multiply_transposed(const float* x, ptrdiff_t x_stride, size_t tokens, const RowWeight& w, size_t first,
                         size_t last, float* y, ptrdiff_t y_stride) {
    constexpr size_t kRows = 4;
    const size_t width = round_up(last - first, kLoadValues);
    const ThreadScratch scratch(tokens * width);
    float* const sums = scratch.data();
    std::memset(sums, 0, tokens * width * sizeof(float));
    const auto add = [&]<size_t R>(size_t n) DECODESTEP_INLINE_LAMBDA {
        for (size_t c = 0; c < width; c += kLoadValues) {
            const size_t piece = (first + c) / kLoadValues, rest = last - first - c;
            if (R == kRows) prefetch_rows<F, R>(w.row(n), w.stride, piece);
            for (size_t t = 0; t < tokens; ++t) {
                float* sum = sums + t * width + c;
                f32x16 s0 = load(sum), s1 = load(sum + 16);
                for (size_t r = 0; r < R; ++r) {
                    f32x16 w0, w1;
                    load_values<F>(w.row(n + r), piece, std::min(rest, kLoadValues), w0, w1);
                    const f32x16 factor =
                        broadcast(x[static_cast<ptrdiff_t>(t) * x_stride + static_cast<ptrdiff_t>(n + r)]);
                    s0 = fma(w0, factor, s0);
                    s1 = fma(w1, factor, s1);
                }
                store(sum, s0);
                store(sum + 16, s1);
            }
        }
    };
    size_t n = 0;
    if (tokens > 1)
        for (; n + kRows <= w.out; n += kRows) add.template operator()<kRows>(n);
    for (; n < w.out; ++n) add.template operator()<1>(n);
    for (size_t t = 0; t < tokens; ++t)
        std::memcpy(y + static_cast<ptrdiff_t>(t) * y_stride + first, sums + t * width, (last - first) * sizeof(float));
}

// A task is about 10 microseconds of work: small enough to balance the threads, large enough to be worth claiming.
// Streams of fewer than four rows would end before the prefetcher catches up.
size_t rows_of_task(const RowWeight& w, size_t tokens) {
    const bool many = are_many(w.format, tokens);
    const size_t unit = many ? kGroupRows : kRowTileOutputs;
    const bool streamed = are_streamed(w.format, tokens);
    const size_t least = many ? kLeastGroups * kGroupRows : streamed ? 4 * kRowStreams : unit;
    return std::max(least, (size_t{1} << 17) / (w.in * tokens + 1) / unit * unit);
}

// Several products with as many rows of one format and inputs, as one.
void multiply_all(std::span<const Linear> products) {
    const auto fewer = [](const Linear& a, const Linear& b) { return a.tokens < b.tokens; };
    const size_t tokens = std::max_element(products.begin(), products.end(), fewer)->tokens;
    const int threads = products[0].threads;
    std::vector<LinearTasks> all;
    all.reserve(products.size());
    for (const Linear& product : products) {
        const LinearTasks& tasks = all.emplace_back(product, tokens);
        parallel_rows(tasks.read_count(), product.w.in, threads, [&](size_t token) { tasks.read(token); });
    }
    const size_t count = all[0].multiply_count();
    parallel_for(all.size() * count, threads, [&](size_t task) { all[task / count].multiply(task % count); });
}

}  // namespace

LinearTasks::LinearTasks(const Linear& call, size_t tokens)
    : call_(call), rows_per_task_(rows_of_task(call.w, tokens)) {
    if (are_many(call.w.format, call.tokens)) copied_.emplace(call.tokens, call.w.in);
}

void LinearTasks::read(size_t token) const {
    if (copied_) copied_->tokens().copy(token, call_.x + static_cast<ptrdiff_t>(token) * call_.x_stride);
}

void LinearTasks::multiply(size_t task) const {
    const size_t first = task * rows_per_task_, last = std::min(first + rows_per_task_, call_.w.out);
    if (copied_) return multiply_blocked_rows(call_.w, first, last, copied_->tokens(), call_.y, call_.y_stride);
    with_format(call_.w.format, [&]<Format F>() { multiply_rows<F>(call_, first, last); });
}

void linear(const Linear& a) { multiply_all({&a, 1}); }

void grouped_products(const GroupedProducts& a) {
    std::vector<Linear> products;
    for (size_t first = 0, end; first < a.tokens; first = end) {
        for (end = first; end < a.tokens && a.groups[end] == a.groups[first];) ++end;
        const RowWeight rows{a.w.row(static_cast<size_t>(a.groups[first]) * a.outputs), a.w.stride, a.w.in, a.outputs,
                             a.w.format};
        products.push_back({a.x + static_cast<ptrdiff_t>(first) * a.x_stride, a.x_stride, end - first, rows,
                            a.y + first * a.outputs, static_cast<ptrdiff_t>(a.outputs), a.threads});
    }
    if (!products.empty()) multiply_all(products);
}

void head_products(const HeadProducts& a) {
    const auto rows_of = [&](size_t head) {
        return RowWeight{a.w.row(head * (a.w.out / a.heads) + a.first), a.w.stride, a.w.in, a.count, a.w.format};
    };
    const size_t outputs = a.transposed ? a.w.in : a.count;
    const auto x_of = [&](size_t head) { return a.x + static_cast<ptrdiff_t>(head) * a.x_head_stride; };
    const auto y_stride = static_cast<ptrdiff_t>(a.heads * outputs);
    if (!a.transposed) {
        std::vector<Linear> products;
        for (size_t head = 0; head < a.heads; ++head)
            products.push_back(
                {x_of(head), a.x_stride, a.tokens, rows_of(head), a.y + head * outputs, y_stride, a.threads});
        return multiply_all(products);
    }
    constexpr size_t kTaskColumns = 512;
    const size_t tasks = ceil_div(outputs, kTaskColumns);
    parallel_for(a.heads * tasks, a.threads, [&](size_t task) {
        const size_t head = task / tasks, first = task % tasks * kTaskColumns;
        with_format(a.w.format, [&]<Format F>() {
            multiply_transposed<F>(x_of(head), a.x_stride, a.tokens, rows_of(head), first,
                                   std::min(first + kTaskColumns, outputs), a.y + head * outputs, y_stride);
        });
    });
}

void gather_rows(const GatherRows& a) {
    parallel_rows(a.count, a.w.in, a.threads, [&](size_t i) {
        with_format(a.w.format, [&]<Format F>() {
            widen<F>(a.w.row(static_cast<size_t>(a.ids[i])), a.w.in, a.values + i * a.w.in);
        });
    });
}

}  // namespace decodestep::DECODESTEP_BUILD
