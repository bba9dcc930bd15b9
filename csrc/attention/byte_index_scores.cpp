#include "attention/index_scores.h"

namespace decodestep::DECODESTEP_BUILD {

void score_byte_keys(const IndexScores& a) { score_keys<ByteIndexKeys>(a); }

}  // namespace decodestep::DECODESTEP_BUILD
