// AVX-512 with dot products of bytes (VNNI).
#pragma once

#include "simd/avx512_byte_products.h"
#include "simd/without_bf16_products.h"
