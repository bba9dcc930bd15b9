// Runs the calls of decoder_forward in the files of the command line on one, two and three threads, and compares logits
// and cache with those in the file, bit by bit but for the payload of NaN. tests/core/test_arm.py writes the files.
#include "core/isa.h"
#include "decoder/decoder_forward.h"
#include "recorded_call.h"

namespace {

using namespace decodestep;

size_t differences_of(const char* path) {
    Reader file(path);
    const auto sizes = file.array<uint64_t>();  // see tests/core/test_arm.py
    const auto numbers = file.array<float>();
    Decoder d{};
    d.hidden = sizes[0], d.heads = sizes[1], d.kv_heads = sizes[2], d.head_values = d.head_dim = sizes[3];
    d.eps = numbers[0], d.scale = numbers[1];
    d.embedding_scale = d.residual_scale = d.logits_scale = 1.0f;
    const size_t feed_forward = sizes[4], vocab = sizes[5], width = d.heads * d.head_dim;
    const auto format = static_cast<Format>(sizes[9]);
    const auto cache = static_cast<CacheType>(sizes[10]);
    const uint32_t infinity = cache == CacheType::f16 ? 0x7c00 : 0x7f80;
    const auto panels = [&](size_t in, size_t out) { return LinearPanelWeight{file.kept<uint8_t>(), in, out, format}; };
    for (size_t layer = 0; layer < sizes[6]; ++layer) {
        DecoderLayer w{};
        w.cache_layer = d.cache_layers++;
        w.attention_norm = file.kept<float>();
        w.ffn_norm = file.kept<float>();
        w.scale = 1.0f;
        w.grouped.kv_heads = d.kv_heads, w.grouped.head_dim = w.grouped.head_values = d.head_dim;
        w.grouped.query = panels(d.hidden, width);
        w.grouped.values_keys = panels(d.hidden, 2 * d.kv_heads * d.head_dim);
        w.grouped.output = panels(width, d.hidden);
        w.feed_forward.gate = panels(d.hidden, feed_forward);
        w.feed_forward.up = panels(d.hidden, feed_forward);
        w.feed_forward.down = panels(feed_forward, d.hidden);
        d.layers.push_back(w);
    }
    d.norm = file.kept<float>();
    d.logits = panels(d.hidden, vocab);
    d.embedding = RowWeight{file.kept<uint8_t>(), d.hidden * sizeof(float), d.hidden, vocab, Format::f32};
    const auto ids = file.array<int64_t>(), sequence = file.array<int64_t>(), positions = file.array<int64_t>(),
               table = file.array<int64_t>(), wanted = file.array<int64_t>();
    const auto sin = file.array<float>(), cos = file.array<float>();
    const auto keys_before = file.array<uint16_t>(), values_before = file.array<uint16_t>();
    const auto keys_after = file.array<uint16_t>(), values_after = file.array<uint16_t>();
    const auto expected = file.array<uint32_t>();
    size_t count = 0;
    for (int threads = 1; threads <= 3; ++threads) {
        auto keys = keys_before, values = values_before;
        std::vector<uint32_t> logits(expected.size());
        decoder_forward({.decoder = &d,
                         .tokens = ids.size(),
                         .ids = ids.data(),
                         .sequence = sequence.data(),
                         .positions = positions.data(),
                         .sin = sin.data(),
                         .cos = cos.data(),
                         .keys = reinterpret_cast<uint8_t*>(keys.data()),
                         .values = reinterpret_cast<uint8_t*>(values.data()),
                         .cache = cache,
                         .slab_pages = sizes[7],
                         .page_table = table.data(),
                         .table_width = sizes[8],
                         .wanted = wanted.data(),
                         .rows = wanted.size(),
                         .logits = reinterpret_cast<float*>(logits.data()),
                         .hidden = nullptr,
                         .threads = threads,
                         .costs = nullptr});
        count += differences(logits, expected, 0x7f800000) + differences(keys, keys_after, infinity) +
                 differences(values, values_after, infinity);
    }
    return count;
}

}  // namespace

int main(int argc, char** argv) { return decodestep::check_recorded(argc, argv, differences_of); }
