#include "linear/linear_panels.h"

#include <algorithm>

#include "core/parallel.h"
#include "linear/linear_panels_tasks.h"
#include "linear/panel_product.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

// About 10 microseconds of work, in whole groups of streams where streams are used.
size_t panels_of_task(const LinearPanels& call) {
    const size_t work = call.w.blocks() * kBlockInputs * kPanelOutputs * call.tokens / 8 + 1,
                 panels = (size_t{1} << 18) / work + 1;
    return streams(call.w.format, call.tokens) ? round_up(panels, kStreams) : panels;
}

}  // namespace

LinearPanelsTasks::LinearPanelsTasks(const LinearPanels& call)
    : call_(call), panels_(call.w.count()), panels_per_task_(panels_of_task(call)) {
    const size_t in = call.w.blocks() * kBlockInputs;
    const bool as_bytes = quantises_activations(call.w.format);
    space_.resize(Activations::floats(call.tokens, in, !as_bytes, as_bytes));
    x_ = Activations::in_space(space_.data(), call.tokens, in, !as_bytes, as_bytes);
}

void LinearPanelsTasks::read(size_t token) const {
    store_row(x_, token, call_.x + static_cast<ptrdiff_t>(token) * call_.x_stride, call_.w.in);
}

void LinearPanelsTasks::multiply(size_t task) const {
    const LinearPanelWeight& w = call_.w;
    const size_t end = std::min((task + 1) * panels_per_task_, panels_);
    multiply_panels(w, {task * panels_per_task_, end}, w.panel(end < panels_ ? end : end - 1), x_, call_.tokens,
                    [&](size_t p, size_t t, const float* outputs) {
                        const size_t first = p * kPanelOutputs, count = std::min(kPanelOutputs, w.out - first);
                        std::memcpy(call_.y + static_cast<ptrdiff_t>(t) * call_.y_stride + first, outputs,
                                    count * sizeof(float));
                    });
}

void linear_panels(const LinearPanels& a) {
    const LinearPanelsTasks tasks(a);
    const bool is_small = a.tokens * a.w.blocks() * kBlockInputs < (size_t{1} << 16);  // not worth waking workers
    parallel_for(tasks.read_count(), is_small ? 1 : a.threads, [&](size_t token) { tasks.read(token); });
    parallel_for(tasks.multiply_count(), a.threads, [&](size_t task) { tasks.multiply(task); });
}

}  // namespace decodestep::DECODESTEP_BUILD
