// The types that logits come in.
#pragma once

namespace decodestep {

enum class LogitType { f32, bf16, f16 };

}  // namespace decodestep
