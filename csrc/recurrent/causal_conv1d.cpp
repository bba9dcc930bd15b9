#include <algorithm>
#include <cstring>

#include "core/parallel.h"
#include "core/pieces.h"
#include "elementwise/silu.h"
#include "recurrent/recurrent_tasks.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

constexpr size_t kTaskValues = size_t{1} << 14;  // fewer take less time than waking a thread for them
constexpr int kMostTaps = 4;                     // in one sweep of a token

// The channels from `first` to `end` of a row: they depend on no others.
class RowChannels {
  public:
    RowChannels(const CausalConv1d& a, size_t row, size_t first, size_t end)
        : a_(a),
          old_(a.state + a.rows.read[row] * a.state_stride),
          new_(a.state + a.rows.written[row] * a.state_stride),
          begin_(a.rows.first(row)),
          tokens_(a.rows.tokens(row)),
          first_(first),
          end_(end) {}

    void run() const {
        each_constant_piece<kMostTaps>(a_.taps, [&]<int taps>(size_t first) {
            for (size_t t = 0; t < tokens_; ++t) add<taps>(t, first);
        });
        keep_inputs();
    }

  private:
    // Input u of the row: those of its state come before its tokens.
    const float* input(size_t u) const {
        const size_t kept = a_.taps - 1;
        return u < kept ? old_ + u * a_.input_stride : a_.x + (begin_ + u - kept) * a_.x_stride;
    }

    // Adds the products of some taps to a token's sums, which are in y where these are not the first.
    template <int taps>
    void add(size_t t, size_t first_tap) const {
        const float *weights[taps], *inputs[taps];
        for (int j = 0; j < taps; ++j) {
            weights[j] = a_.weight + (first_tap + j) * a_.weight_stride;
            inputs[j] = input(t + first_tap + j);
        }
        float* y = a_.y + (begin_ + t) * a_.y_stride;
        const float* sums = first_tap > 0 ? y : a_.bias;
        const bool silu = a_.silu && first_tap + taps == a_.taps;
        const auto sum = [&](auto&& at) DECODESTEP_INLINE_LAMBDA {
            f32x16 total = sums ? at(sums) : broadcast(0.0f);
#pragma GCC unroll 4
            for (int j = 0; j < taps; ++j) total = fma(at(weights[j]), at(inputs[j]), total);
            return silu ? gated(total, broadcast(1.0f)) : total;
        };
        size_t c = first_;
        for (; c + kLanes <= end_; c += kLanes)
            store(y + c, sum([c](const float* p) DECODESTEP_INLINE_LAMBDA { return load(p + c); }));
        if (const size_t rest = end_ - c; rest > 0)
            store_partial(
                y + c, sum([=](const float* p) DECODESTEP_INLINE_LAMBDA { return load_partial(p + c, rest); }), rest);
    }

    // In ascending order, so that inputs that only move up in a state are read before they are overwritten.
    void keep_inputs() const {
        if (tokens_ == 0 && old_ == new_) return;
        for (size_t j = 0; j + 1 < a_.taps; ++j)
            std::memmove(new_ + j * a_.input_stride + first_, input(tokens_ + j) + first_,
                         (end_ - first_) * sizeof(float));
    }

    const CausalConv1d& a_;
    const float* old_;
    float* new_;
    size_t begin_, tokens_, first_, end_;
};

}  // namespace

ChannelBlocks::ChannelBlocks(const CausalConv1d& a, size_t least) : rows_(a.rows.count), channels_(a.channels) {
    const size_t of_row = ceil_div(2 * static_cast<size_t>(a.threads), std::max<size_t>(rows_, 1));
    width_ = round_up(std::max(least, ceil_div(channels_, of_row)), kLanes);
    blocks_ = ceil_div(channels_, width_);
}

ChannelBlock ChannelBlocks::operator[](size_t number) const {
    const size_t first = number % blocks_ * width_;
    return {number / blocks_, first, std::min(first + width_, channels_)};
}

void convolve(const CausalConv1d& a, const ChannelBlock& block) {
    RowChannels(a, block.row, block.first, block.end).run();
}

void causal_conv1d(const CausalConv1d& a) {
    const size_t of_row = std::max<size_t>(a.tokens / std::max<size_t>(a.rows.count, 1), 1);
    const ChannelBlocks blocks(a, std::max(kLeastChannels, kTaskValues / of_row));
    parallel_for(blocks.count(), a.threads, [&](size_t number) { convolve(a, blocks[number]); });
}

}  // namespace decodestep::DECODESTEP_BUILD
