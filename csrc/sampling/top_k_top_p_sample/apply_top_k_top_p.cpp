#include "sampling/top_k_top_p_sample/survivors.h"
#include "sampling/top_k_top_p_sample/top_k_top_p_sample.h"

namespace decodestep::DECODESTEP_ISA {
namespace {

template <Real real>
class Filter {
  public:
    Filter(Survivors<real>& list, const ApplyTopKTopP& args, size_t b)
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
            copy_numbers();
        else if (by_k)
            write();
        else
            std::copy_n(data_, vocab_, out_);
    }

  private:
    using Item = typename Logits<real>::Item;

    // The list of all that are no lower than the k-th largest; of all above -inf where these are less than k.
    void top_k() {
        list_.collect(list_.reached_by(k_));
        if (list_.n < k_) return;
        float* const copy = list_.values;
        std::copy_n(list_.inputs, list_.n, copy);
        std::nth_element(copy, copy + (k_ - 1), copy + list_.n, [](float a, float b) { return a > b; });
        const float kth = copy[k_ - 1];
        list_.keep([&](size_t i) { return list_.inputs[i] >= kth; });
    }

    // Keeps the tokens whose running sum from the smallest on is above `limit`, and the last in any case.
    void top_p(double limit, bool listed) {
        if (list_.largest == kNothing) return last_of_nothing();
        if (limit >= kUnits) {
            list_.collect(list_.largest);
            list_.ids[0] = list_.ids[list_.n - 1];
            list_.n = 1;
            return write();
        }
        const Weights weights = listed ? list_.softmax_of_listed_ids() : list_.softmax_of_row();
        const double whole = listed ? list_.mass_from(kNothing, weights) : list_.mass_of_row(weights);
        if (limit == 0) {
            if (!listed) list_.collect(kNothing);
            list_.find_values(weights);
            list_.keep([&](size_t i) { return list_.values[i] > 0.0f; });
            return write();
        }
        if (!listed) list_.collect_mass(weights, whole - limit, 32);
        list_.rank(list_.n, true);
        list_.find_values(weights);
        double above = 0;
        size_t kept = 0;
        do above += static_cast<double>(units(list_.values[kept++]));
        while (kept < list_.n && whole - above > limit);
        list_.n = kept;
        write();
    }

    // Of a row without a number above -inf the last in the order stays: the highest id at -inf, else of NaN.
    void last_of_nothing() {
        list_.n = 0;
        write();
        const bool numbers = std::any_of(data_, data_ + vocab_, [&](const Item& x) { return is_number(x); });
        if (!numbers) out_[vocab_ - 1] = data_[vocab_ - 1];
    }

    // Less than k tokens are above -inf: the k-th largest is -inf, above NaN alone, or it is NaN.
    void copy_numbers() {
        size_t numbers = 0;
        for (size_t i = 0; i < vocab_; ++i) numbers += is_number(data_[i]);
        for (size_t i = 0; i < vocab_; ++i)
            out_[i] = numbers < k_ || is_number(data_[i]) ? data_[i] : Logits<real>::nothing();
    }

    bool is_number(const Item& x) const {
        const float wide = list_.input(static_cast<size_t>(&x - data_));
        return wide == wide;
    }

    void write() {
        std::fill_n(out_, vocab_, Logits<real>::nothing());
        for (size_t i = 0; i < list_.n; ++i) out_[list_.ids[i]] = data_[list_.ids[i]];
    }

    Survivors<real>& list_;
    const Item* const data_;
    const size_t vocab_;
    Item* const out_;
    const size_t k_;
    const float p_;
};

}  // namespace

void apply_top_k_top_p(const ApplyTopKTopP& args) {
    for_each_row(args, [&](auto& list, size_t b) { Filter(list, args, b).run(); });
}

}  // namespace decodestep::DECODESTEP_ISA
