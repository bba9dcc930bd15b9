// The tokens of a call grouped by expert, so that each expert's weights are read once for all of its tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace decodestep::DECODESTEP_BUILD {

// Entries [first, first + count): the tokens of one expert, ascending; a token that names the expert twice occurs
// twice.
struct ExpertRun {
    size_t expert, first, count;
};

// One entry for each token and expert that it goes to, in the order of experts.
class ExpertRows {
  public:
    // experts, weights: [tokens, used]; experts in [0, count). Reuses the memory of the previous assignment.
    void assign(const int64_t* experts, const float* weights, size_t tokens, size_t used, size_t count) {
        starts_.assign(count + 1, 0);
        for (size_t i = 0; i < tokens * used; ++i) ++starts_[static_cast<size_t>(experts[i]) + 1];
        runs_.clear();
        for (size_t e = 0; e < count; ++e) {
            if (starts_[e + 1] > 0) runs_.push_back({e, starts_[e], starts_[e + 1]});
            starts_[e + 1] += starts_[e];
        }
        token_.resize(tokens * used);
        weight_.resize(tokens * used);
        for (size_t t = 0; t < tokens; ++t)
            for (size_t i = t * used; i < (t + 1) * used; ++i) {
                const size_t entry = starts_[static_cast<size_t>(experts[i])]++;
                token_[entry] = t;
                weight_[entry] = weights[i];
            }
    }

    const std::vector<ExpertRun>& runs() const { return runs_; }
    size_t token(size_t entry) const { return token_[entry]; }
    float weight(size_t entry) const { return weight_[entry]; }

    // Whether the tokens of a run are consecutive, so that their rows are one block. Comparing the ends is not enough,
    // because a token may occur twice.
    bool adjacent(const ExpertRun& run) const {
        for (size_t i = run.first + 1; i < run.first + run.count; ++i)
            if (token_[i] != token_[i - 1] + 1) return false;
        return true;
    }

  private:
    std::vector<ExpertRun> runs_;
    std::vector<size_t> starts_, token_;
    std::vector<float> weight_;
};

}  // namespace decodestep::DECODESTEP_BUILD
