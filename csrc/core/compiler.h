// Compiler-specific attributes.
#pragma once

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__ || __SIZEOF_POINTER__ != 8
#error "decodestep is for little-endian machines with addresses of 64 bits"
#endif

// Inlined into every caller. Kernels are built once per instruction set from the same headers: a function that is not
// inlined must live in the namespace of its build, or the linker would keep one build's copy for all of them.
#define DECODESTEP_INLINE inline __attribute__((always_inline))
#define DECODESTEP_INLINE_LAMBDA __attribute__((always_inline))

namespace decodestep {

// The compiler knows nothing of the value from here on. It would compute addresses that follow from it before a loop,
// one for each of many places, and store them, where one register and constant distances do.
template <class T>
DECODESTEP_INLINE void forget(T& value) {
    asm volatile("" : "+r"(value));
}

}  // namespace decodestep
