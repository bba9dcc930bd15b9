#include "elementwise/rms_norm.h"

#include "core/parallel.h"
#include "elementwise/rms_norm_row.h"

namespace decodestep::DECODESTEP_BUILD {

void rms_norm(const RmsNorm& a) {
    parallel_rows(a.rows, a.width, a.threads, [&](size_t row) {
        const float* x = a.x + row * a.x_stride;
        float* y = a.y + row * a.y_stride;
        const f32x16 rms = broadcast(root_mean_square(x, a.width, a.eps)), alpha = broadcast(a.alpha);
        size_t i = 0;
        for (; i + kLanes <= a.width; i += kLanes) store(y + i, normed(load(x + i), rms, load(a.gamma + i)) * alpha);
        if (const size_t rest = a.width - i; rest > 0) {
            const f32x16 gamma = load_partial(a.gamma + i, rest);
            store_partial(y + i, normed(load_partial(x + i, rest), rms, gamma) * alpha, rest);
        }
    });
}

}  // namespace decodestep::DECODESTEP_BUILD
