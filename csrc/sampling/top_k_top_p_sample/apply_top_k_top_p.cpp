#include "sampling/top_k_top_p_sample/survivors.h"
#include "sampling/top_k_top_p_sample/top_k_top_p_sample.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

template <LogitType type>
class RowFilter {
  public:
    RowFilter(Survivors<type>& list, const ApplyTopKTopP& args, size_t b)
        : list_(list),
          data_(list.logits.data),
          vocab_(args.vocab),
          out_(static_cast<Item*>(args.out) + b * args.vocab),
          k_(args.k ? static_cast<size_t>(std::max(args.k[b], 0)) : 0),
          p_(args.p ? args.p[b] : std::numeric_limits<float>::quiet_NaN()) {}

    void run() {
        list_.sweep();
        const bool by_k = k_ > 0 && k_ <= vocab_;
        if (by_k) top_k();
        const double limit = static_cast<double>(1.0f - p_) * kUnits;
        if (limit >= 0)
            top_p(limit, by_k);
        else if (by_k && list_.n < k_)
            copy_row_without_nan();
        else if (by_k)
            write();
        else
            std::copy_n(data_, vocab_, out_);
    }

  private:
    using Item = typename Logits<type>::Item;

    // Lists all tokens no lower than the k-th largest, or all above -inf if those are fewer than k.
    void top_k() {
        list_.list_from(list_.reached_by(k_));
        if (list_.n < k_) return;
        float* const copy = list_.values;
        std::copy_n(list_.inputs, list_.n, copy);
        std::nth_element(copy, copy + (k_ - 1), copy + list_.n, [](float a, float b) { return a > b; });
        const float kth = copy[k_ - 1];
        list_.keep_if([&](size_t i) { return list_.inputs[i] >= kth; });
    }

    // Of the tokens in ascending order, keeps those at which the running sum of probabilities is above `limit`, and the
    // last in any case.
    void top_p(double limit, bool listed) {
        if (list_.max_input == kMinusInfinity) return keep_last_of_minus_infinity();
        if (limit >= kUnits) {
            list_.list_from(list_.max_input);
            list_.ids[0] = list_.id_at(list_.n - 1);
            list_.n = 1;
            return write();
        }
        const SoftmaxWeights weights = listed ? list_.softmax_of_listed_ids() : list_.softmax_of_row();
        const double whole = listed ? list_.mass_from(kMinusInfinity, weights) : list_.mass_of_row(weights);
        if (limit == 0) {
            if (!listed) list_.list_from(kMinusInfinity);
            list_.find_values(weights);
            list_.keep_if([&](size_t i) { return list_.values[i] > 0.0f; });
            return write();
        }
        if (!listed) list_.list_mass(weights, whole - limit, 32);
        list_.rank(list_.n, true);
        list_.find_values(weights);
        double above = 0;
        size_t kept = 0;
        while (kept < list_.n && (kept == 0 || whole - above > limit))
            above += static_cast<double>(units(list_.values[kept++]));
        list_.n = kept;
        write();
    }

    // A row of -inf and NaN alone: the last in the order stays, which is the highest id at -inf, or of NaN if there is
    // no -inf. A token at -inf needs no writing.
    void keep_last_of_minus_infinity() {
        list_.n = 0;
        write();
        const bool numbers = std::any_of(data_, data_ + vocab_, [&](const Item& x) { return is_number(x); });
        if (!numbers) out_[vocab_ - 1] = data_[vocab_ - 1];
    }

    // Fewer than k tokens are above -inf. So the k-th largest is -inf, which drops NaN alone, or it is NaN, which drops
    // nothing.
    void copy_row_without_nan() {
        size_t numbers = 0;
        for (size_t i = 0; i < vocab_; ++i) numbers += is_number(data_[i]);
        for (size_t i = 0; i < vocab_; ++i)
            out_[i] = numbers < k_ || is_number(data_[i]) ? data_[i] : Logits<type>::minus_infinity();
    }

    bool is_number(const Item& x) const {
        const float wide = list_.input(static_cast<size_t>(&x - data_));
        return wide == wide;
    }

    void write() {
        std::fill_n(out_, vocab_, Logits<type>::minus_infinity());
        for (size_t i = 0; i < list_.n; ++i) out_[list_.ids[i]] = data_[list_.ids[i]];
    }

    Survivors<type>& list_;
    const Item* const data_;
    const size_t vocab_;
    Item* const out_;
    const size_t k_;
    const float p_;
};

}  // namespace

void apply_top_k_top_p(const ApplyTopKTopP& args) {
    each_survivors(args, [&](auto& list, size_t b) { RowFilter(list, args, b).run(); });
}

}  // namespace decodestep::DECODESTEP_BUILD
