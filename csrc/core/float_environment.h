// The floating-point environment that kernels run in: round to nearest even, subnormals kept. It belongs to a thread,
// and a host may have changed it (torch.set_flush_denormal, a library built with -ffast-math): without this, the bits
// of a result would depend on which threads computed it.
#pragma once

#include <cstdint>

#include "core/compiler.h"

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace decodestep {

// Sets the default environment of the calling thread, and restores the one that it found.
class DefaultFloats {
  public:
    DECODESTEP_INLINE DefaultFloats() : found_(read()) {
        if (is_changed()) write(kDefault);
    }
    DECODESTEP_INLINE ~DefaultFloats() {
        if (is_changed()) write(found_);
    }
    DefaultFloats(const DefaultFloats&) = delete;
    DefaultFloats& operator=(const DefaultFloats&) = delete;

  private:
#ifdef __x86_64__
    // MXCSR: all exceptions masked; the lowest six bits say which have occurred, and are nobody's setting.
    using Word = uint32_t;
    static constexpr Word kDefault = 0x1F80, kSettings = ~Word{0x3F};
    static DECODESTEP_INLINE Word read() { return _mm_getcsr(); }
    static DECODESTEP_INLINE void write(Word word) { _mm_setcsr(word); }
#elif defined(__aarch64__)
    using Word = uint64_t;
    static constexpr Word kDefault = 0, kSettings = ~Word{0};
    static DECODESTEP_INLINE Word read() {
        Word word;
        asm volatile("mrs %0, fpcr" : "=r"(word));
        return word;
    }
    static DECODESTEP_INLINE void write(Word word) { asm volatile("msr fpcr, %0" : : "r"(word)); }
#else
    using Word = uint32_t;
    static constexpr Word kDefault = 0, kSettings = 0;
    static DECODESTEP_INLINE Word read() { return 0; }
    static DECODESTEP_INLINE void write(Word) {}
#endif
    DECODESTEP_INLINE bool is_changed() const { return (found_ & kSettings) != kDefault; }

    const Word found_;
};

}  // namespace decodestep
