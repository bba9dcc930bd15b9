#include "mla_prolog/mla_prolog.h"

#include "core/parallel.h"
#include "mla_prolog/prolog_plan.h"

namespace decodestep::DECODESTEP_BUILD {
namespace {

template <class T>
void run_all_stages(const MlaProlog& a) {
    const PrologPlan<T> plan(a);
    for (const PrologStage stage : kPrologStages)
        parallel_for(plan.tasks(stage), plan.threads(stage), [&](size_t task) { plan.run(stage, task); });
}

}  // namespace

void mla_prolog(const MlaProlog& a) {
    if (a.tokens == 0) return;
    a.bf16 ? run_all_stages<Bf16>(a) : run_all_stages<float>(a);
}

}  // namespace decodestep::DECODESTEP_BUILD
