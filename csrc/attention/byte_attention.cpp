#include "attention/attention_tile.h"
#include "attention/byte_keys.h"

namespace decodestep::DECODESTEP_BUILD {

void attend_byte_splits(const TileSplits& splits) { attend_splits<ByteKeys>(splits); }

}  // namespace decodestep::DECODESTEP_BUILD
