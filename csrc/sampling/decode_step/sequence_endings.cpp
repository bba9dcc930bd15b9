#include "sampling/decode_step/sequence_endings.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>

namespace decodestep {
namespace {

// The item of this token in `count` items from `first` on, which ascend by token, or null.
template <class Item>
const Item* find_token(const Item* first, size_t count, int64_t token) {
    const Item* const last = first + count;
    const Item* const found =
        std::lower_bound(first, last, token, [](const Item& item, int64_t wanted) { return item.token < wanted; });
    return found != last && found->token == token ? found : nullptr;
}

}  // namespace

// Sorts the sequences by their tokens before the last, read backwards: those below a node are then next to each other.
struct SequenceEndings::Builder {
    struct Sequence {
        size_t length;  // without the last token
        size_t stop;    // where that is in tokens_
        size_t rank;    // of the length, in the order in which values are summed
        float value;
    };

    // The sequences that have the tokens of a node before their last.
    struct Range {
        size_t first, last, depth;
    };

    SequenceEndings& index;
    std::vector<Sequence> sequences = {};
    std::vector<Range> ranges = {};      // of the nodes
    std::vector<uint32_t> parents = {};  // of the nodes; the root's is the root
    std::vector<Sequence> own = {};      // the sequence of each ending

    const int64_t* last_token(const Sequence& sequence) const { return index.tokens_.data() + sequence.stop; }

    // How many tokens before their last two sequences share.
    size_t shared(const Sequence& a, const Sequence& b) const {
        const auto before_a = std::make_reverse_iterator(last_token(a)),
                   before_b = std::make_reverse_iterator(last_token(b));
        const auto most = static_cast<ptrdiff_t>(std::min(a.length, b.length));
        return static_cast<size_t>(std::mismatch(before_a, before_a + most, before_b).first - before_a);
    }

    bool precedes(const Sequence& a, const Sequence& b) const {
        const size_t n = shared(a, b);
        if (n < std::min(a.length, b.length)) return *(last_token(a) - n - 1) < *(last_token(b) - n - 1);
        return std::pair(a.length, *last_token(a)) < std::pair(b.length, *last_token(b));
    }

    void sort_sequences(std::span<const int64_t> lengths, std::span<const float> values) {
        sequences.reserve(lengths.size());
        std::unordered_map<size_t, size_t> ranks{{0, 0}};
        size_t stop = 0;
        for (size_t i = 0; i < lengths.size(); ++i) {
            const auto length = static_cast<size_t>(lengths[i]) - 1;
            const size_t rank = ranks.try_emplace(length, ranks.size()).first->second;
            stop += length;
            sequences.push_back({length, stop++, rank, values.empty() ? 0 : values[i]});
        }
        std::stable_sort(sequences.begin(), sequences.end(),
                         [&](const Sequence& a, const Sequence& b) { return precedes(a, b); });
        std::vector<int64_t>& distinct = index.distinct_;
        for (const Sequence& sequence : sequences) distinct.push_back(*last_token(sequence));
        std::sort(distinct.begin(), distinct.end());
        distinct.erase(std::unique(distinct.begin(), distinct.end()), distinct.end());
    }

    void find_ranges() {
        std::vector<Range> open{{0, 0, 0}};  // those that the next sequence may belong to, each inside the one before
        for (size_t i = 0; i < sequences.size(); ++i) {
            const size_t depth = i ? shared(sequences[i - 1], sequences[i]) : 0;
            size_t first = i;
            for (; open.back().depth > depth; open.pop_back()) {
                first = open.back().first;
                ranges.push_back({first, i, open.back().depth});
            }
            if (open.back().depth < depth) open.push_back({first, 0, depth});
            if (open.back().depth < sequences[i].length) open.push_back({i, 0, sequences[i].length});
        }
        for (const Range& range : open) ranges.push_back({range.first, sequences.size(), range.depth});
        std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) {
            return std::pair(a.first, a.depth) < std::pair(b.first, b.depth);
        });
    }

    void add_nodes() {
        std::vector<uint32_t> path;  // from the root to the node before
        for (const Range& range : ranges) {
            while (!path.empty() && ranges[path.back()].last <= range.first) path.pop_back();
            const auto node = static_cast<uint32_t>(index.nodes_.size());
            parents.push_back(path.empty() ? node : path.back());
            path.push_back(node);
            const size_t stop = sequences.empty() ? 0 : sequences[range.first].stop;
            index.nodes_.push_back({range.depth, stop, 0, static_cast<uint32_t>(own.size()), 0, 0, 0});
            for (size_t i = range.first; i < range.last && sequences[i].length == range.depth; ++i)
                add_ending(node, sequences[i]);
        }
    }

    void add_ending(uint32_t node, const Sequence& sequence) {
        const int64_t token = *last_token(sequence);
        uint32_t& endings = index.nodes_[node].endings;
        if (endings && index.endings_.back().token == token) return;  // an equal sequence
        ++endings;
        own.push_back(sequence);
        const auto& distinct = index.distinct_;
        const auto number = std::lower_bound(distinct.begin(), distinct.end(), token) - distinct.begin();
        index.endings_.push_back({token, static_cast<uint32_t>(number), 0});
        if (index.has_values_) index.endings_.back().value = sum_of_values(node, token);
    }

    float sum_of_values(uint32_t node, int64_t token) const {
        std::vector<std::pair<size_t, float>> values;  // by rank: on the way to a node each length occurs once
        for (;; node = parents[node]) {
            const Node& at = index.nodes_[node];
            if (const Ending* found = find_token(index.endings_.data() + at.first_ending, at.endings, token)) {
                const Sequence& sequence = own[static_cast<size_t>(found - index.endings_.data())];
                values.emplace_back(sequence.rank, sequence.value);
            }
            if (node == 0) break;
        }
        std::sort(values.begin(), values.end());
        float sum = 0;
        for (const auto& [rank, value] : values) sum += value;
        return sum;
    }

    void link_children() {
        for (size_t node = 1; node < parents.size(); ++node) ++index.nodes_[parents[node]].children;
        uint32_t links = 0;
        for (Node& node : index.nodes_) {
            node.first_child = links;
            links += std::exchange(node.children, 0);
        }
        index.children_.resize(links);
        for (uint32_t node = 1; node < parents.size(); ++node) {
            Node &parent = index.nodes_[parents[node]], &child = index.nodes_[node];
            child.token = index.tokens_[child.stop - 1 - parent.depth];
            index.children_[parent.first_child + parent.children++] = {child.token, node};
        }
    }
};

SequenceEndings::SequenceEndings(std::vector<int64_t> tokens, std::span<const int64_t> lengths,
                                 std::span<const float> values, bool has_values)
    : tokens_(std::move(tokens)), has_values_(has_values) {
    Builder builder{*this};
    builder.sort_sequences(lengths, values);
    builder.find_ranges();
    builder.add_nodes();
    builder.link_children();
}

const SequenceEndings::Node* SequenceEndings::child_of(const Node& node, int64_t token) const {
    if (node.children == 0) return nullptr;
    const Node* const first = &node + 1;
    if (first->token == token) return first;
    const Child* const found = find_token(children_.data() + node.first_child, node.children, token);
    return found ? &nodes_[found->node] : nullptr;
}

void FoundEndings::find(const SequenceEndings& sequences, std::span<const int64_t> history) {
    path_.clear();
    size_t count = 0;
    for (const auto* node = &sequences.nodes_.front(); node;) {
        if (node->endings) path_.emplace_back(sequences.endings_.data() + node->first_ending, node->endings);
        count += node->endings;
        if (node->depth == history.size()) break;
        const auto* const child = sequences.child_of(*node, history[history.size() - 1 - node->depth]);
        if (!child || child->depth > history.size()) break;
        const auto before = history.last(child->depth).first(child->depth - node->depth - 1);
        if (!std::equal(before.begin(), before.end(), sequences.tokens_.data() + child->stop - child->depth)) break;
        node = child;
    }
    ids_.resize(count);
    values_.resize(count);
    named_.assign(sequences.endings(), 0);
    count = 0;
    for (; !path_.empty(); path_.pop_back()) {  // the longest first: its sums hold the others
        for (const auto& ending : path_.back()) {
            ids_[count] = ending.token;
            values_[count] = ending.value;
            count += !std::exchange(named_[ending.number], 1);
        }
    }
    ids_.resize(count);
    values_.resize(count);
}

}  // namespace decodestep
