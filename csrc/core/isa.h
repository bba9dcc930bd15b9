// The instruction sets that the kernels are built for, and the choice among them at run time.
#pragma once

#if defined(__x86_64__)
#define DECODESTEP_X86 1
#endif

namespace decodestep {

// avx512_bf16 has dot products of bfloat16 and of int8 (VNNI) and packs bytes (VBMI2) too.
enum class Isa { baseline, avx2, avx512, avx512_bf16 };

// What this machine runs, unless the environment variable DECODESTEP_ISA names a lesser one. Fixed at the first call,
// which throws std::invalid_argument for any other name.
Isa isa();
const char* isa_name();

}  // namespace decodestep

// Declares a kernel in the namespace of every instruction set, and `name(args)` to call the build chosen for this
// machine.
#ifdef DECODESTEP_X86
#define DECODESTEP_KERNEL(name, Args)           \
    namespace baseline {                        \
    void name(const Args&);                     \
    }                                           \
    namespace avx2 {                            \
    void name(const Args&);                     \
    }                                           \
    namespace avx512 {                          \
    void name(const Args&);                     \
    }                                           \
    namespace avx512_bf16 {                     \
    void name(const Args&);                     \
    }                                           \
    inline void name(const Args& args) {        \
        switch (isa()) {                        \
            case Isa::avx512_bf16:              \
                return avx512_bf16::name(args); \
            case Isa::avx512:                   \
                return avx512::name(args);      \
            case Isa::avx2:                     \
                return avx2::name(args);        \
            case Isa::baseline:                 \
                return baseline::name(args);    \
        }                                       \
    }
#else
#define DECODESTEP_KERNEL(name, Args) \
    namespace baseline {              \
    void name(const Args&);           \
    }                                 \
    inline void name(const Args& args) { baseline::name(args); }
#endif
