// The vector primitives of the instruction set that this build is for.
//
// A tier of core/tiers.txt has a file of its own here, and all of them define the same primitives in the same order:
//
//   avx512_bf16.h   AVX-512 with VNNI, BF16 and VBMI2  } avx512_byte_products.h  }
//   avx512_vnni.h   AVX-512 with VNNI                  }                         } avx512_common.h  }
//   avx512.h        AVX-512 (F, BW, DQ, VL)                                      }                  } x86.h
//   avx2_vnni.h     AVX2, FMA, F16C with AVX-VNNI      } avx2_common.h                              }
//   avx2.h          AVX2, FMA, F16C                    }                                            }
//   neon_i8mm.h     NEON with dotprod and i8mm         }
//   neon_dotprod.h  NEON with dotprod                  } neon_common.h  }
//   neon.h          NEON                               }                } quarters.h
//   portable.h      plain C++ for any machine (portable_narrow.h: its types of less than four bytes)
//
// Beside them are the files that several share. What has a build of its own where is in core/tiers.txt: constants that
// a kernel for vectors alone reads (kVectorRegisters, kStoresBytes, kStreams) are the same in all tiers of those
// vectors.
//
// To add an instruction set: write its file, choose it below, and give its tier a row in core/tiers.txt and a test of
// the CPU in core/isa.cpp. Nothing outside this folder tests for an instruction set: an algorithm that wants other
// tiles on another machine derives them from a constant of the target, as kVectorRegisters.
//
// The primitives give the same bits on every target, but for fma where a machine has no fused multiply-add, and
// split_exponent, which serves an approximation. Everything lives in the namespace of its build, so that the linker
// cannot mix the builds up.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "core/compiler.h"
#include "core/half.h"

namespace decodestep::DECODESTEP_BUILD {

constexpr int kLanes = 16;  // of a vector, on every target

using Mask = uint32_t;  // bit i stands for lane i
constexpr Mask kAllLanes = 0xFFFF;

}  // namespace decodestep::DECODESTEP_BUILD

#if defined(__AVX512BF16__) && defined(__AVX512VNNI__) && defined(__AVX512VBMI2__)
#include "simd/avx512_bf16.h"
#elif defined(__AVX512VNNI__)
#include "simd/avx512_vnni.h"
#elif defined(__AVX512F__)
#include "simd/avx512.h"
#elif defined(__AVXVNNI__)
#include "simd/avx2_vnni.h"
#elif defined(__AVX2__)
#include "simd/avx2.h"
#elif defined(DECODESTEP_NEON) && defined(__ARM_FEATURE_MATMUL_INT8)
#include "simd/neon_i8mm.h"
#elif defined(DECODESTEP_NEON) && defined(__ARM_FEATURE_DOTPROD)
#include "simd/neon_dotprod.h"
#elif defined(DECODESTEP_NEON)
#include "simd/neon.h"
#else
#include "simd/portable.h"
#endif
