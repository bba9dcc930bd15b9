// Rows of a weight into panels; once, when a model is loaded.
#include <vector>

#include "core/parallel.h"
#include "linear/activations.h"
#include "linear/linear_panels.h"
#include "simd/rounding.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

// The 32 outputs of a panel; where the weight has no more rows, null.
struct PanelRows {
    const uint8_t* row[kPanelOutputs];
};

size_t bytes_of_block(Format format) { return row_bytes(format, kBlockInputs); }

// Moves four bytes of each output at a time: `groups` of them, from `offset` in its block on.
void interleave(const PanelRows& rows, size_t at, size_t offset, size_t groups, uint8_t flip, uint8_t* out) {
    for (size_t r = 0; r < kPanelOutputs; ++r) {
        uint8_t values[kBlockInputs] = {};
        if (rows.row[r]) std::memcpy(values, rows.row[r] + at + offset, 4 * groups);
        for (size_t j = 0; j < groups; ++j) {
            uint32_t four;
            std::memcpy(&four, values + 4 * j, sizeof four);
            four ^= flip * 0x01010101u;  // q + 128, as q's sign bit turned over
            std::memcpy(out + 4 * kPanelOutputs * j + 4 * r, &four, sizeof four);
        }
    }
}

void halves(const PanelRows& rows, size_t at, uint8_t* out) {
    std::memset(out, 0, 2 * kPanelOutputs);
    for (size_t r = 0; r < kPanelOutputs; ++r)
        if (rows.row[r]) std::memcpy(out + 2 * r, rows.row[r] + at, 2);
}

void pack_blocks(Format format, const PanelRows& rows, size_t blocks, uint8_t* out) {
    const size_t bytes = bytes_of_block(format);
    for (size_t b = 0; b < blocks; ++b, out += panel_block_bytes(format)) {
        const size_t at = b * bytes;
        if (format == Format::q8_0) {
            interleave(rows, at, 2, 8, 0x80, out);
            halves(rows, at, out + 1024);
            continue;
        }
        const bool has_least = format == Format::q4_1;
        interleave(rows, at, has_least ? 4 : 2, 4, 0, out);
        halves(rows, at, out + 512);
        if (has_least) halves(rows, at + 2, out + 576);
    }
}

// A row of values to Q8_0 blocks, as the file format has them.
void quantise_row(const float* values, size_t in, uint8_t* out) {
    for (size_t k = 0; k < in; k += kBlockInputs, out += bytes_of_block(Format::q8_0)) {
        const f32x16 first = load(values + k), second = load(values + k + kLanes);
        uint16_t scale[kLanes];
        float units[kLanes];
        store_f16(scale, broadcast(largest_magnitude(first, second) / 127.0f));
        store(units, from_f16(scale));
        const float unit = units[0];
        const f32x16 inverse = broadcast(unit > 0.0f ? 1.0f / unit : 0.0f), most = broadcast(127.0f);
        const auto bounded = [&](f32x16 v) { return max(broadcast(-127.0f), min(most, v * inverse)); };
        std::memcpy(out, scale, 2);
        round_to_bytes(bounded(first), reinterpret_cast<int8_t*>(out + 2));
        round_to_bytes(bounded(second), reinterpret_cast<int8_t*>(out + 2 + kLanes));
    }
}

void put_dense(Format format, const float* values, size_t in, size_t r, uint8_t* out) {
    for (size_t k = 0; k < in; ++k) {
        const size_t at = k * kPanelOutputs + r;
        if (format == Format::f32) {
            std::memcpy(out + 4 * at, values + k, 4);
        } else {
            const uint16_t half = to_bf16(values[k]).bits;
            std::memcpy(out + 2 * at, &half, 2);
        }
    }
}

void put_halves(const uint8_t* row, size_t in, size_t r, uint8_t* out) {
    for (size_t k = 0; k < in; ++k) std::memcpy(out + 2 * (k * kPanelOutputs + r), row + 2 * k, 2);
}

}  // namespace

void pack_linear_panels(const PackLinearPanels& a) {
    const Panels w{a.panels, a.rows.in, a.rows.out, a.format};
    const size_t in = a.rows.in;
    parallel_for(w.count(), a.threads, [&](size_t p) {
        uint8_t* out = a.panels + p * w.panel_bytes();
        const size_t first = p * kPanelOutputs, left = a.rows.out - first;
        const size_t count = left < kPanelOutputs ? left : kPanelOutputs;
        PanelRows rows{};
        for (size_t r = 0; r < count; ++r) rows.row[r] = a.rows.data + (first + r) * a.rows.stride;
        if (a.rows.format == a.format && reads_bytes(a.format)) return pack_blocks(a.format, rows, w.blocks(), out);

        std::vector<uint8_t> blocks;
        if (!reads_bytes(a.format))
            std::memset(out, 0, w.panel_bytes());
        else
            blocks.resize(count * row_bytes(a.format, in));
        std::vector<float> values(in);
        for (size_t r = 0; r < count; ++r) {
            if (a.rows.format == a.format && a.format != Format::f32) {
                put_halves(rows.row[r], in, r, out);
                continue;
            }
            const int64_t id = static_cast<int64_t>(first + r);
            take_rows({a.rows.data, a.rows.stride, in, a.rows.format, &id, 1, values.data()});
            if (reads_bytes(a.format)) {
                uint8_t* row = blocks.data() + r * row_bytes(a.format, in);
                quantise_row(values.data(), in, row);
                rows.row[r] = row;
            } else {
                put_dense(a.format, values.data(), in, r, out);
            }
        }
        if (reads_bytes(a.format)) pack_blocks(a.format, rows, w.blocks(), out);
    });
}

}  // namespace decodestep::DECODESTEP_ISA
