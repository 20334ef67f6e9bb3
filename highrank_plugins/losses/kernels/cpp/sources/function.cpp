// The pointwise functions that the kernels know, by the families of KernelFunction
// (losses/chunked_head.py). value(z, kept, next) is f(z) and leaves what pull_back needs in `kept`,
// a second number in kept[next].
#include "function.hpp"

#include <algorithm>
#include <limits>

#include "elementary.hpp"

namespace {

// Evaluate a row by the `value` of the function F, which keeps COUNT numbers of each logit.
template <class T, class F, int64_t COUNT = 1>
struct Row : Function<T> {
    int64_t keeps() const override { return COUNT; }

    T evaluate(T* row, int64_t classes, const T* bias, T* kept) const override {
        return bias ? evaluate_as<true>(row, classes, bias, kept)
                    : evaluate_as<false>(row, classes, bias, kept);
    }

    template <bool biased>
    T evaluate_as(T* row, int64_t classes, const T* bias, T* kept) const {
        const F f = static_cast<const F&>(*this);
        constexpr int64_t stride = COUNT > 0;  // `kept` is null where nothing is kept
        T top = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : top)
        for (int64_t x = 0; x < classes; ++x) {
            const T z = f.value(biased ? row[x] + bias[x] : row[x], kept + stride * x, classes);
            row[x] = z;
            top = z > top ? z : top;
        }
        return top;
    }
};

template <class T>
struct Identity final : Row<T, Identity<T>, 0> {
    T value(T z, T*, int64_t) const { return z; }
    void pull_back(T*, int64_t, const T*, double*) const override {}
};

// f(z) = z + (k − 1) log σ(z − c); c = 0, k = 2 is SigSoftmax. Keeps f'.
template <class T>
struct Gss final : Row<T, Gss<T>> {
    T c, k;
    explicit Gss(const double* numbers) : c(T(numbers[0])), k(T(numbers[1])) {}

    T value(T z, T* kept, int64_t) const {
        const T from = z - c;
        const T decay = exponential(from < 0 ? from : -from);
        const T whole = 1 + decay;
        *kept = k - (k - 1) * ((from < 0 ? decay : T(1)) / whole);
        return z + (k - 1) * ((from < 0 ? from : T(0)) - logarithm(whole));
    }
    void pull_back(T* grad, int64_t classes, const T* kept, double*) const override {
#pragma omp simd
        for (int64_t x = 0; x < classes; ++x) grad[x] *= kept[x];
    }
};

// f(z) = a σ((z + b) / s) + d. Keeps f'.
template <class T>
struct Logistic final : Row<T, Logistic<T>> {
    T a, b, inverse, d, steepest;  // 1 / s, since a product is faster than a division; a / s
    explicit Logistic(const double* numbers)
        : a(T(numbers[0])), b(T(numbers[1])), inverse(T(1 / numbers[2])), d(T(numbers[3])),
          steepest(T(numbers[0] / numbers[2])) {}

    T value(T z, T* kept, int64_t) const {
        const T x = (z + b) * inverse;
        const T decay = exponential(x < 0 ? x : -x);
        const T share = 1 / (1 + decay);
        *kept = steepest * (decay * share * share);  // no 1 − σ, which loses digits
        return a * (x < 0 ? decay * share : share) + d;
    }
    void pull_back(T* grad, int64_t classes, const T* kept, double*) const override {
#pragma omp simd
        for (int64_t x = 0; x < classes; ++x) grad[x] *= kept[x];
    }
};

// f(z) = z + Σ_n t_n (b_n − z)₊^n + u_n (z − d_n)₊^n, n = 1, 2. Keeps z.
template <class T>
struct MultiMax final : Row<T, MultiMax<T>> {
    T at[4], strength[4];  // b_1, d_1, b_2, d_2
    explicit MultiMax(const T* pairs) {
        for (int i = 0; i < 4; ++i) at[i] = pairs[2 * i], strength[i] = pairs[2 * i + 1];
    }
    static T above_zero(T x) { return x < 0 ? T(0) : x; }

    T value(T z, T* kept, int64_t) const {
        *kept = z;
        const T low = above_zero(at[2] - z), high = above_zero(z - at[3]);
        return z + strength[0] * above_zero(at[0] - z) + strength[1] * above_zero(z - at[1]) +
               strength[2] * low * low + strength[3] * high * high;
    }
    void pull_back(T* grad, int64_t classes, const T* kept, double* sums) const override {
        T at0 = 0, at1 = 0, at2 = 0, at3 = 0, by0 = 0, by1 = 0, by2 = 0, by3 = 0;
#pragma omp simd reduction(+ : at0, at1, at2, at3, by0, by1, by2, by3)
        for (int64_t x = 0; x < classes; ++x) {
            const T z = kept[x], g = grad[x];
            const T low1 = above_zero(at[0] - z), high1 = above_zero(z - at[1]);
            const T low2 = above_zero(at[2] - z), high2 = above_zero(z - at[3]);
            const T side0 = low1 > 0 ? g : T(0), side1 = high1 > 0 ? g : T(0);
            at0 += side0, at1 += side1, at2 += g * low2, at3 += g * high2;
            by0 += g * low1, by1 += g * high1, by2 += g * low2 * low2, by3 += g * high2 * high2;
            grad[x] = g - strength[0] * side0 + strength[1] * side1 +
                      2 * g * (strength[3] * high2 - strength[2] * low2);
        }
        if (!sums) return;
        const T moved[4] = {strength[0] * at0, -strength[1] * at1, 2 * strength[2] * at2,
                            -2 * strength[3] * at3};
        const T bent[4] = {by0, by1, by2, by3};
        for (int i = 0; i < 4; ++i) sums[2 * i] += moved[i], sums[2 * i + 1] += bent[i];
    }
};

// f(z) = slopes[i] (z + bound − i width) + left[i] in cell i. Keeps z, and the slope, since
// looking it up again takes longer than reading it.
template <class T>
struct Plif final : Row<T, Plif<T>, 2> {
    static constexpr int64_t PART = 256;  // logits whose cells are found together
    T bound, width, last;
    int32_t end;
    const T* pairs;  // slope and left of each cell
    Plif(const double* numbers, const T* tables, int64_t length)
        : bound(T(numbers[0])), width(T(numbers[1])), last(T(length - 1)),
          end(static_cast<int32_t>(length - 1)), pairs(tables) {}

    // ±∞ and NaN have no cell: clamped before the cast
    int32_t cell_of(T z) const {
        const T position = (z + bound) / width;
        const T above = position > 0 ? position : T(0);
        const int32_t cell = static_cast<int32_t>(above < last ? above : last);
        return cell < end ? cell : end;
    }

    T value(T z, T* kept, int64_t next) const {
        *kept = z;
        const int32_t i = cell_of(z);
        const T slope = kept[next] = pairs[2 * i];
        return slope * ((z + bound) - T(i) * width) + pairs[2 * i + 1];
    }
    void pull_back(T* grad, int64_t classes, const T* kept, double* sums) const override {
        const T* slope = kept + classes;
        if (sums) add_to_sums(grad, classes, kept, sums);
#pragma omp simd
        for (int64_t x = 0; x < classes; ++x) grad[x] *= slope[x];
    }
    void add_to_sums(const T* grad, int64_t classes, const T* kept, double* sums) const {
        int32_t cell[PART];
        T by_offset[PART];
        for (int64_t start = 0; start < classes; start += PART) {
            const int64_t part = std::min(PART, classes - start);
            const T* z = kept + start;
            const T* g = grad + start;
#pragma omp simd
            for (int64_t x = 0; x < part; ++x) {
                cell[x] = cell_of(z[x]);
                by_offset[x] = g[x] * ((z[x] + bound) - T(cell[x]) * width);
            }
            for (int64_t x = 0; x < part; ++x) {
                sums[2 * cell[x]] += by_offset[x];
                sums[2 * cell[x] + 1] += g[x];
            }
        }
    }
};

}  // namespace

template <class T>
std::unique_ptr<Function<T>> function_of(
    int family, const double* numbers, const T* tables, int64_t length
) {
    switch (family) {
        case 1: return std::make_unique<Gss<T>>(numbers);
        case 2: return std::make_unique<Logistic<T>>(numbers);
        case 3: return std::make_unique<MultiMax<T>>(tables);
        case 4: return std::make_unique<Plif<T>>(numbers, tables, length);
        default: return std::make_unique<Identity<T>>();
    }
}

template std::unique_ptr<Function<float>> function_of(int, const double*, const float*, int64_t);
template std::unique_ptr<Function<double>> function_of(
    int, const double*, const double*, int64_t
);
