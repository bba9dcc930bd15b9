// The vector primitives of the instruction set that this build is for. Kernels include them by simd.h.
//
// A family of instruction sets has its files here, with a condition for each feature that a tier of core/tiers.txt adds
// to it. All families define the same primitives in the same order:
//
//   avx512.h, avx512_products.h   AVX-512 (F, BW, DQ, VL); VNNI, BF16, VBMI2   } x86.h
//   avx2.h, avx2_products.h       AVX2, FMA, F16C; AVX-VNNI                    }
//   neon.h                        NEON; dotprod, i8mm                          } quarters.h
//   portable.h                    plain C++ for any machine                    }
//
// What lanes.h has is the same for all of them, and fallbacks.h has what follows from the other primitives where an
// instruction set has nothing better. The constants of a family are the same in all its tiers: the kernels that run on
// a tier are of several builds, and one allocates what another writes.
//
//   kVectorRegisters   vectors that registers hold
//   kStoresBytes       whether weights of few bits become bytes in memory before many tokens are multiplied by them
//   kPrefetchBytes     how far ahead weights that are read once are prefetched
//   kStreams           how many streams of memory one core reads faster than one
//   kSplitsBf16        whether 32 bfloat16 are widened for less as even and odd ones than in their order
//
// To add an instruction set: write its file, or its conditions in the file of its family; include a new file below; and
// give its tier a row in core/tiers.txt and a test of the CPU in core/isa.cpp. Nothing outside this folder tests for an
// instruction set: an algorithm that wants other tiles on another machine derives them from a constant of the target,
// as kVectorRegisters.
//
// The primitives give the same bits on every target, but for fma where a machine has no fused multiply-add, and
// split_exponent, which serves an approximation. Everything lives in the namespace of its build, so that the linker
// cannot mix the builds up.
#pragma once

#if defined(DECODESTEP_FAMILY_avx512)
#include "simd/avx512_products.h"
#elif defined(DECODESTEP_FAMILY_avx2)
#include "simd/avx2_products.h"
#elif defined(DECODESTEP_FAMILY_neon)
#include "simd/neon.h"
#elif defined(DECODESTEP_FAMILY_portable)
#include "simd/portable.h"
#else
#error "a build is of a family of core/tiers.txt"
#endif
