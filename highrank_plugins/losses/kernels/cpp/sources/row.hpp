// One row of logits: its softmax without the division, and sums of rows.
#pragma once

#include <limits>

#include "elementary.hpp"

// row becomes e^(row − top); returns the sum.
template <class T>
T exponentials(T* row, int64_t classes, T top) {
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t x = 0; x < classes; ++x) {
        row[x] = exponential(row[x] - top);
        sum += row[x];
    }
    return sum;
}

// The same, and `spread` becomes Σ_x e^(row − top) (top − row): the entropy is
// log sum + spread / sum, of which neither is negative.
template <class T>
T exponentials_and_spread(T* row, int64_t classes, T top, T& spread) {
    const T lowest = std::numeric_limits<T>::lowest();
    T sum = 0, total = 0;
#pragma omp simd reduction(+ : sum, total)
    for (int64_t x = 0; x < classes; ++x) {
        const T below = row[x] - top;
        row[x] = exponential(below);
        sum += row[x];
        total -= row[x] * (below < lowest ? lowest : below);  // −∞ times 0 is no number
    }
    spread = total;
    return sum;
}

// row becomes its log-softmax: row − top − log Σ e^(row − top).
template <class T>
void log_softmax(T* row, int64_t classes, T top) {
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t x = 0; x < classes; ++x) sum += exponential(row[x] - top);
    const T log_sum = std::log(sum);
#pragma omp simd
    for (int64_t x = 0; x < classes; ++x) row[x] = (row[x] - top) - log_sum;
}

// row[x] = factor ((Σ weights + more) row[x] / norm − weights[x])
template <class T>
void subtract_weights(T* row, int64_t classes, const T* weights, T factor, T more, T norm) {
    T total = 0;
#pragma omp simd reduction(+ : total)
    for (int64_t x = 0; x < classes; ++x) total += weights[x];
    const T scale = factor * (total + more) / norm;
#pragma omp simd
    for (int64_t x = 0; x < classes; ++x) row[x] = row[x] * scale - factor * weights[x];
}

// Σ_x (top − row), whose terms are small where all of the row is large.
template <class T>
T distances(const T* row, int64_t classes, T top) {
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t x = 0; x < classes; ++x) sum += top - row[x];
    return sum;
}

// total[x] += row[x]
template <class T>
void add_to(T* total, const T* row, int64_t classes) {
#pragma omp simd
    for (int64_t x = 0; x < classes; ++x) total[x] += row[x];
}

// row[x] = row[x] · scale − shift
template <class T>
void scale_and_shift(T* row, int64_t classes, T scale, T shift) {
#pragma omp simd
    for (int64_t x = 0; x < classes; ++x) row[x] = row[x] * scale - shift;
}

// Whether `label` is the first place of the greatest value.
template <class T>
bool is_first_top(const T* row, int64_t label, T top) {
    if (row[label] != top) return false;
    for (int64_t x = 0; x < label; ++x)
        if (row[x] == top) return false;
    return true;
}
