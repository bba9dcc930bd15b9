#include "mixture_of_experts/expert_router.h"

#include "core/parallel.h"
#include "core/thread_scratch.h"
#include "mixture_of_experts/route_row.h"

namespace decodestep::DECODESTEP_BUILD {

void expert_router(const ExpertRouter& a) {
    parallel_rows(a.tokens, a.rule.experts * a.rule.used, a.threads, [&](size_t t) {
        const ThreadScratch scratch(RouteRow::scratch_floats(a.rule));
        const RouteRow route(a.rule, scratch.data());
        route(a.logits + static_cast<ptrdiff_t>(t) * a.logits_stride, a.experts + t * a.rule.used,
              a.weights + t * a.rule.used);
    });
}

}  // namespace decodestep::DECODESTEP_BUILD
