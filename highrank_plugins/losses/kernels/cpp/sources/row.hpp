// One row of logits: f of it, its softmax without the division, and sums of rows.
#pragma once

#include <limits>

#include "elementary.hpp"

// f(z) = z + (k − 1) log σ(z − c): GSS; c = 0, k = 2 is SigSoftmax, k = 1 the identity.
template <class T>
struct Gss {
    T c, k;
    bool is_identity() const { return k == T(1); }
};

// What a first look at a row finds out.
template <class T>
struct Summary {
    T top;   // max_x f
    T sum;   // Σ_x f
};

template <class T, bool curved, bool biased>
Summary<T> evaluate_as(T* row, int64_t classes, const T* bias, Gss<T> f, T* slope) {
    T top = -std::numeric_limits<T>::infinity(), sum = 0;
#pragma omp simd reduction(max : top) reduction(+ : sum)
    for (int64_t x = 0; x < classes; ++x) {
        T z = row[x];
        if (biased) z += bias[x];
        if (curved) {
            const T from = z - f.c;
            const T decay = exponential(from < 0 ? from : -from);
            const T whole = 1 + decay;
            z += (f.k - 1) * ((from < 0 ? from : T(0)) - logarithm(whole));
            slope[x] = f.k - (f.k - 1) * ((from < 0 ? decay : T(1)) / whole);
        }
        row[x] = z;
        top = z > top ? z : top;
        sum += z;
    }
    return {top, sum};
}

// row becomes f(row + bias), slope f' there, which is left alone for the identity; no bias: null.
template <class T>
Summary<T> evaluate(T* row, int64_t classes, const T* bias, Gss<T> f, T* slope) {
    if (f.is_identity())
        return bias ? evaluate_as<T, false, true>(row, classes, bias, f, slope)
                    : evaluate_as<T, false, false>(row, classes, bias, f, slope);
    return bias ? evaluate_as<T, true, true>(row, classes, bias, f, slope)
                : evaluate_as<T, true, false>(row, classes, bias, f, slope);
}

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

// row[x] *= by[x]
template <class T>
void multiply(T* row, const T* by, int64_t classes) {
#pragma omp simd
    for (int64_t x = 0; x < classes; ++x) row[x] *= by[x];
}

// Whether `label` is the first place of the greatest value.
template <class T>
bool is_first_top(const T* row, int64_t label, T top) {
    if (row[label] != top) return false;
    for (int64_t x = 0; x < label; ++x)
        if (row[x] == top) return false;
    return true;
}
