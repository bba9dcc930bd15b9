// NEON, as every ARM processor of 64 bits has it.
#pragma once

#include "simd/neon_common.h"

namespace decodestep::DECODESTEP_BUILD {

// sums + the products of four groups of four bytes. Sixteen bits hold two of them: 2 * 128 * 127.
DECODESTEP_INLINE u32x4 dot_signed(u32x4 sums, int8x16_t a, int8x16_t b) {
    const int16x8_t pairs = vpaddq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)), vmull_high_s8(a, b));
    return vreinterpretq_u32_s32(vpadalq_s16(as_signed(sums), pairs));
}

}  // namespace decodestep::DECODESTEP_BUILD

#include "simd/neon_signed_bytes.h"
#include "simd/without_byte_products.h"
