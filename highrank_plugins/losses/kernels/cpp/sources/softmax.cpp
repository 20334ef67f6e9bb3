// One softmax per row of a chunk of logits.
#include <omp.h>

#include <vector>

#include "row.hpp"

namespace {

template <class T>
void softmax(
    T* logits, int64_t row_stride, int64_t rows, int64_t classes,
    const T* bias, const int64_t* target, const T* factor,
    Gss<T> f, T total, T target_weight, T smoothing_weight,
    T* nll, T* smooth_sum, uint8_t* correct, T* columns, int threads
) {
#pragma omp parallel num_threads(threads)
    {
        std::vector<T> slope(f.is_identity() ? 0 : classes);
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; ++r) {
            T* row = logits + r * row_stride;
            const int64_t label = target[r];
            const Summary<T> found = evaluate(row, classes, bias, f, slope.data());
            const T at_target = row[label];
            const bool wins = is_first_top(row, label, found.top);
            const T norm = exponentials(row, classes, found.top);
            const T log_norm = found.top + std::log(norm);
            nll[r] = (found.top - at_target) + std::log(norm);  // exact beside large logits
            if (correct) correct[r] = wins && !std::isnan(norm);
            if (smooth_sum) smooth_sum[r] = log_norm * classes - found.sum;
            if (!factor) continue;
            scale_and_shift(row, classes, factor[r] * total / norm, factor[r] * smoothing_weight);
            row[label] -= factor[r] * target_weight;
            if (!f.is_identity()) multiply(row, slope.data(), classes);
            if (columns) add_to(columns + omp_get_thread_num() * classes, row, classes);
        }
    }
}

}  // namespace

// nll [rows] and, unless null, Σ_x −log P_x and whether the target wins, of logits [rows, classes].
// With `factor` [rows] the logits become factor (total P − target_weight 1[x = y] − smoothing_weight) f',
// and each thread adds up its rows in its own row of columns [threads, classes], unless null.
#define SOFTMAX(name, T)                                                                           \
    extern "C" void name(                                                                          \
        T* logits, int64_t row_stride, int64_t rows, int64_t classes, const T* bias,               \
        const int64_t* target, const T* factor, double c, double k, double total,                  \
        double target_weight, double smoothing_weight, T* nll, T* smooth_sum, uint8_t* correct, T* columns,     \
        int threads                                                                                \
    ) {                                                                                            \
        softmax<T>(                                                                                \
            logits, row_stride, rows, classes, bias, target, factor, {T(c), T(k)}, T(total),       \
            T(target_weight), T(smoothing_weight), nll, smooth_sum, correct, columns, threads                   \
        );                                                                                         \
    }
SOFTMAX(softmax_float, float)
SOFTMAX(softmax_double, double)
