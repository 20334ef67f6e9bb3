// One softmax per row of a chunk of logits.
#include <omp.h>

#include <algorithm>
#include <vector>

#include "function.hpp"
#include "row.hpp"

namespace {

template <class T>
void softmax(
    T* logits, int64_t row_stride, int64_t rows, int64_t classes,
    const T* bias, const int64_t* target, const T* factor, const T* weights, T* log_probs,
    const Function<T>& f, T total, T target_weight, T smoothing_weight, T z,
    T* nll, T* smooth_sum, uint8_t* correct, T* entropy, T* square_norm, T* columns,
    double* table_sums,
    int64_t sums_length, int threads
) {
#pragma omp parallel num_threads(threads)
    {
        std::vector<T> kept(f.keeps() * classes);
        double* sums = table_sums ? table_sums + omp_get_thread_num() * sums_length : nullptr;
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; ++r) {
            T* row = logits + r * row_stride;
            if (log_probs) {
                T* own = log_probs + r * classes;
                std::copy(row, row + classes, own);
                log_softmax(own, classes, f.evaluate(own, classes, bias, kept.data()));
                continue;
            }
            const int64_t label = target[r];
            const T top = f.evaluate(row, classes, bias, kept.data());
            const T at_target = row[label];
            const bool wins = is_first_top(row, label, top);
            T spread = 0;
            const T distance = smooth_sum ? distances(row, classes, top) : T(0);
            const T norm = entropy ? exponentials_and_spread(row, classes, top, spread)
                                   : exponentials(row, classes, top);
            const T log_norm = top + std::log(norm);
            nll[r] = (top - at_target) + std::log(norm);  // exact beside large logits
            if (correct) correct[r] = wins && !std::isnan(norm);
            if (smooth_sum) smooth_sum[r] = distance + std::log(norm) * classes;
            if (entropy) entropy[r] = std::log(norm) + spread / norm;
            if (square_norm) square_norm[r] = log_norm * log_norm;
            if (!factor) continue;
            const T more = 2 * z * (z > 0 ? log_norm : T(0));
            if (weights) {
                subtract_weights(row, classes, weights + r * classes, factor[r], more, norm);
            } else {
                const T shift = factor[r] * smoothing_weight;
                scale_and_shift(row, classes, factor[r] * (total + more) / norm, shift);
                row[label] -= factor[r] * target_weight;
            }
            f.pull_back(row, classes, kept.data(), sums);
            if (columns) add_to(columns + omp_get_thread_num() * classes, row, classes);
        }
    }
}

}  // namespace

// nll [rows] and, unless null, Σ_x −log P_x, whether the target wins, the entropy and lse², of logits
// [rows, classes]. With `factor` [rows] the logits become
// factor ((total + 2 z lse) P − target_weight 1[x = y] − smoothing_weight) f', and each thread adds up its rows in its own row of columns [threads, classes], unless null, and the
// gradients of f's tables in its own part of table_sums [threads, length, 2], unless null. With weights
// w [rows, classes] the gradient is factor ((Σw + 2 z lse) P − w) f'. With log_probs [rows, classes]
// these become log P, and nothing else is done.
#define SOFTMAX(name, T)                                                                           \
    extern "C" void name(                                                                          \
        T* logits, int64_t row_stride, int64_t rows, int64_t classes, const T* bias,               \
        const int64_t* target, const T* factor, const T* weights, T* log_probs, int family,        \
        const double* numbers,                                                                     \
        const T* tables, int64_t length, double* table_sums, double total,                         \
        double target_weight, double smoothing_weight, double z, T* nll, T* smooth_sum,            \
        uint8_t* correct, T* entropy, T* square_norm, T* columns, int threads                      \
    ) {                                                                                            \
        softmax<T>(                                                                                \
            logits, row_stride, rows, classes, bias, target, factor, weights, log_probs,           \
            *function_of(family, numbers, tables, length), T(total), T(target_weight),             \
            T(smoothing_weight), T(z), nll, smooth_sum, correct, entropy, square_norm, columns,    \
            table_sums, 2 * length, threads                                                        \
        );                                                                                         \
    }
SOFTMAX(softmax_float, float)
SOFTMAX(softmax_double, double)
