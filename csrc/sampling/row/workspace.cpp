#include "sampling/row/workspace.h"

#include <algorithm>

#include "core/shelf.h"

namespace decodestep {
namespace {

template <class T>
std::unique_ptr<T[]> room(size_t items) {
    return std::make_unique_for_overwrite<T[]>(items + kLanesOfBlock);
}

using WorkspaceShelf = Shelf<std::vector<std::unique_ptr<Workspace>>>;

constexpr size_t kShelf = 64;  // more workspaces than that are given back to the system

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
      slots(room<uint32_t>(4 * vocab + 128)),
      slot_bits(0) {}

Workspaces::Workspaces(size_t count, size_t vocab) {
    taken_.reserve(count);
    WorkspaceShelf::use([&](auto& left) {
        while (taken_.size() < count && !left.empty()) {
            taken_.push_back(std::move(left.back()));
            left.pop_back();
        }
    });
    for (auto& workspace : taken_)
        if (workspace->vocab < vocab) workspace = std::make_unique<Workspace>(vocab);
    while (taken_.size() < count) taken_.push_back(std::make_unique<Workspace>(vocab));
}

Workspaces::~Workspaces() {
    WorkspaceShelf::use([&](auto& left) {
        if (left.capacity() < kShelf) left.reserve(kShelf);
        for (auto& workspace : taken_)
            if (left.size() < kShelf) left.push_back(std::move(workspace));
    });
}

}  // namespace decodestep
