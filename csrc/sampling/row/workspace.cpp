#include "sampling/row/workspace.h"

#include <algorithm>

#include "core/object_pool.h"

namespace decodestep {
namespace {

template <class T>
std::unique_ptr<T[]> room(size_t items) {
    return std::make_unique_for_overwrite<T[]>(items + kLanesOfBlock);
}

// Of a workspace: the sizes of the items below, of which there is one for each token.
constexpr size_t kTokenBytes = 89;

size_t bytes_of(const std::unique_ptr<Workspace>& workspace) { return workspace ? workspace->vocab * kTokenBytes : 0; }

using WorkspacePool = ObjectPool<std::unique_ptr<Workspace>, 256, bytes_of>;

// Of those of a call, so many bytes for each are kept: enough for a vocabulary of 180,000 tokens on any number of
// threads. Memory that is not kept would be faulted in anew by every call.
constexpr size_t kMostKeptEach = size_t{16} << 20, kMostKept = size_t{512} << 20;

}  // namespace

Workspace::Workspace(size_t vocab)
    : vocab(vocab),
      group_max(room<float>((vocab / kLogitsBlock + 1) * kLanesOfBlock)),
      ids(room<int32_t>(vocab)),
      scores(room<float>(vocab)),
      weights(room<double>(vocab)),
      logs(room<double>(vocab)),
      terms(room<double>(vocab)),
      kept(room<uint8_t>(vocab)),
      ranking(room<Ranked>(vocab)),
      keys(room<uint64_t>(vocab)),
      spare_keys(room<uint64_t>(vocab)),
      selection(room<float>(vocab)),
      marks(std::make_unique<uint64_t[]>((vocab / kLogitsBlock + 1) * (kLogitsBlock / 64))),
      patched_ids(room<int32_t>(vocab)),
      patched_raw(room<float>(vocab)),
      patched_now(room<float>(vocab)),
      places(room<uint32_t>(vocab)) {}

float* Workspace::masked() {
    if (!masked_) masked_ = room<float>(vocab);
    return masked_.get();
}

Workspaces::Workspaces(size_t count, size_t vocab) {
    taken_.reserve(count);
    while (taken_.size() < count) {
        taken_.push_back(WorkspacePool::take());
        if (!taken_.back() || taken_.back()->vocab < vocab) taken_.back() = std::make_unique<Workspace>(vocab);
    }
}

Workspaces::~Workspaces() {
    const size_t most_bytes = std::max(kMostKept, kMostKeptEach * taken_.size());
    for (auto& workspace : taken_) WorkspacePool::give(std::move(workspace), most_bytes);
}

}  // namespace decodestep
