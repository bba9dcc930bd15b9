// NEON with dot products of bytes.
#pragma once

#include "simd/neon_byte_products.h"
#include "simd/neon_signed_bytes.h"
