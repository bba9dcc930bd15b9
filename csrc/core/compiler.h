// What this code asks of the compiler.
#pragma once

// Inlined into every caller. Kernels are built once for each instruction set from the same headers: a function that is
// not inlined has to live in the namespace of its build, or the linker would keep one build's copy for all of them.
#define DECODESTEP_INLINE inline __attribute__((always_inline))
