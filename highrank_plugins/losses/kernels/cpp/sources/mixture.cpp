// The Mixture of Softmaxes of a chunk of logits, all components of a token together.
#include <omp.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "function.hpp"
#include "row.hpp"

namespace {

// What a batch of tokens is asked for, and where it goes; null: not wanted.
template <class T>
struct Mixture {
    int64_t components, classes;
    const T* bias;
    T target_weight, smoothing_weight, z;
    bool smooth;
    T *nll, *smooth_sum;
    uint8_t* correct;
    T *entropy, *square_norm;
    T* grad_prior;
    uint8_t* underflow;
    const T* weights;
    T* log_probs;
};

// Memory of one thread.
template <class T>
struct Workspace {
    std::vector<T> kept;     // what f keeps of every component [K, keeps(), M], see function.hpp
    std::vector<T> mixture;  // P_x, later w_x / P_x [M]
    std::vector<T> row;      // a copy of logits [M]
    std::vector<T> norm, log_norm, joint;

    Workspace(const Mixture<T>& m, int64_t keeps)
        : kept(m.components * keeps * m.classes),
          mixture(m.smooth || m.correct || m.entropy || m.log_probs ? m.classes : 0),
          row(m.log_probs ? m.classes : 0),
          norm(m.components), log_norm(m.components), joint(m.components) {}

    T* kept_of(int64_t component) {
        return kept.data() + component * static_cast<int64_t>(kept.size() / norm.size());
    }
};

// log Σ_k e^(joint_k)
template <class T>
T log_sum_exp(const std::vector<T>& joint) {
    const T top = *std::max_element(joint.begin(), joint.end());
    T sum = 0;
    if (top == -std::numeric_limits<T>::infinity()) {
        for (const T value : joint) sum += value;  // −∞, or NaN
        return sum;
    }
    for (const T value : joint) sum += std::exp(value - top);
    return top + std::log(sum);
}

// P_x = Σ_k π_k P_kx, of exponentials and their sums.
template <class T>
void mix_probabilities(const Mixture<T>& m, const T* rows, const T* log_prior, Workspace<T>& own) {
    T* mixture = own.mixture.data();
    std::fill(own.mixture.begin(), own.mixture.end(), T(0));
    for (int64_t k = 0; k < m.components; ++k) {
        const T share = std::exp(log_prior[k]) / own.norm[k];
        const T* row = rows + k * m.classes;
#pragma omp simd
        for (int64_t x = 0; x < m.classes; ++x) mixture[x] += share * row[x];
    }
}

// Whether a probability is too small to divide by.
template <class T>
bool underflows(const std::vector<T>& values) {
    const T limit = std::numeric_limits<T>::min() / std::numeric_limits<T>::epsilon();
    T found = std::numeric_limits<T>::infinity();
#pragma omp simd reduction(min : found)
    for (size_t x = 0; x < values.size(); ++x) found = values[x] < found ? values[x] : found;
    return found < limit;
}

// log P of one token, or 0 and true where probabilities underflow. Logits stay.
template <class T>
bool log_mixture(
    const Mixture<T>& m, const Function<T>& f, const T* rows, const T* log_prior, T* log_probs,
    Workspace<T>& own
) {
    T* mixture = own.mixture.data();
    std::fill(own.mixture.begin(), own.mixture.end(), T(0));
    for (int64_t k = 0; k < m.components; ++k) {
        own.row.assign(rows + k * m.classes, rows + (k + 1) * m.classes);
        T* row = own.row.data();
        const T top = f.evaluate(row, m.classes, m.bias, own.kept_of(k));
        const T share = std::exp(log_prior[k]) / exponentials(row, m.classes, top);
#pragma omp simd
        for (int64_t x = 0; x < m.classes; ++x) mixture[x] += share * row[x];
    }
    if (underflows(own.mixture)) {
        std::fill(log_probs, log_probs + m.classes, T(0));
        return true;
    }
#pragma omp simd
    for (int64_t x = 0; x < m.classes; ++x) log_probs[x] = logarithm(mixture[x]);
    return false;
}

template <class T>
T greatest(const std::vector<T>& values) {
    T found = -std::numeric_limits<T>::infinity();
#pragma omp simd reduction(max : found)
    for (size_t x = 0; x < values.size(); ++x) found = values[x] > found ? values[x] : found;
    return found;
}

// −Σ_x P_x log P_x
template <class T>
T entropy_of(const std::vector<T>& probs) {
    const T least_normal = std::numeric_limits<T>::min();
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (size_t x = 0; x < probs.size(); ++x)
        sum -= probs[x] * logarithm(probs[x] < least_normal ? least_normal : probs[x]);
    return sum;
}

// What the z-loss adds to the factor of P_k in the gradient of row k.
template <class T>
T norm_weight(const Mixture<T>& m, T scale, T log_norm) {
    return m.z > 0 ? 2 * m.z * scale * log_norm : T(0);
}

// Without smoothing: row k becomes scale r_k (P_k − 1[x = y]), r the components' posterior.
template <class T>
void plain_gradient(
    const Mixture<T>& m, T* rows, int64_t label, T scale, T log_likelihood, T* grad_prior,
    Workspace<T>& own
) {
    // −∞, a token that nothing explains, is no shift
    const T shift = log_likelihood == -std::numeric_limits<T>::infinity() ? T(0) : log_likelihood;
    for (int64_t k = 0; k < m.components; ++k) {
        T* row = rows + k * m.classes;
        const T factor = scale * std::exp(own.joint[k] - shift);
        const T every = factor + norm_weight(m, scale, own.log_norm[k]);
        scale_and_shift(row, m.classes, every / own.norm[k], T(0));
        row[label] -= factor;
        grad_prior[k] = -factor;
    }
}

// With weights w_x on −log P_x and u_x = w_x / P_x, row k becomes scale π_k P_kx (c_k − u_x), where
// c_k = Σ_x P_kx u_x.
template <class T>
void weighted_gradient(
    const Mixture<T>& m, T* rows, int64_t label, const T* weights, T scale, const T* log_prior,
    T* grad_prior, Workspace<T>& own
) {
    T* ratio = own.mixture.data();
    if (weights) {
#pragma omp simd
        for (int64_t x = 0; x < m.classes; ++x) ratio[x] = weights[x] / ratio[x];
    } else {
        const T at_label = (m.smoothing_weight + m.target_weight) / ratio[label];
#pragma omp simd
        for (int64_t x = 0; x < m.classes; ++x) ratio[x] = m.smoothing_weight / ratio[x];
        ratio[label] = at_label;
    }
    for (int64_t k = 0; k < m.components; ++k) {
        T* row = rows + k * m.classes;
        T share = 0;
#pragma omp simd reduction(+ : share)
        for (int64_t x = 0; x < m.classes; ++x) share += row[x] * ratio[x];
        share /= own.norm[k];
        const T factor = scale * std::exp(log_prior[k]);
        const T outside = factor / own.norm[k];
        const T every = norm_weight(m, scale, own.log_norm[k]) / own.norm[k];
#pragma omp simd
        for (int64_t x = 0; x < m.classes; ++x) row[x] *= outside * (share - ratio[x]) + every;
        grad_prior[k] = -factor * share;
    }
}

template <class T>
void one_token(
    const Mixture<T>& m, const Function<T>& f, int64_t token, T* rows, int64_t label, const T* log_prior,
    const T* scale, T* columns, double* table_sums, Workspace<T>& own
) {
    if (m.log_probs) {
        T* log_probs = m.log_probs + token * m.classes;
        m.underflow[token] = log_mixture(m, f, rows, log_prior, log_probs, own);
        return;
    }
    for (int64_t k = 0; k < m.components; ++k) {
        T* row = rows + k * m.classes;
        const T top = f.evaluate(row, m.classes, m.bias, own.kept_of(k));
        const T at_target = row[label];
        own.norm[k] = exponentials(row, m.classes, top);
        own.log_norm[k] = top + std::log(own.norm[k]);
        // in this order the prior is not lost beside large logits
        own.joint[k] = log_prior[k] + ((at_target - top) - std::log(own.norm[k]));
    }
    if (m.square_norm) {
        m.square_norm[token] = 0;
        for (const T value : own.log_norm) m.square_norm[token] += value * value;
    }
    const T log_likelihood = log_sum_exp(own.joint);
    m.nll[token] = -log_likelihood;
    if (!own.mixture.empty()) mix_probabilities(m, rows, log_prior, own);
    if (m.correct)
        m.correct[token] = !std::isnan(log_likelihood) &&
                       is_first_top(own.mixture.data(), label, greatest(own.mixture));
    if (m.entropy) m.entropy[token] = entropy_of(own.mixture);
    if (m.smooth) {
        m.underflow[token] = underflows(own.mixture);
        if (m.underflow[token]) {
            std::fill(rows, rows + m.components * m.classes, T(0));
            return;
        }
    }
    if (m.smooth_sum) {
        T sum = 0;  // of a NaN the logarithm is finite, and the nll is NaN
#pragma omp simd reduction(+ : sum)
        for (int64_t x = 0; x < m.classes; ++x) sum -= logarithm(own.mixture[x]);
        m.smooth_sum[token] = sum;
    }
    if (!scale) return;
    T* grad_prior = m.grad_prior + token * m.components;
    const T* weights = m.weights ? m.weights + token * m.classes : nullptr;
    if (m.smooth)
        weighted_gradient(m, rows, label, weights, scale[token], log_prior, grad_prior, own);
    else
        plain_gradient(m, rows, label, scale[token], log_likelihood, grad_prior, own);
    for (int64_t k = 0; k < m.components; ++k) {
        T* row = rows + k * m.classes;
        f.pull_back(row, m.classes, own.kept_of(k), table_sums);
        if (columns) add_to(columns, row, m.classes);
    }
}

template <class T>
void mixture(
    const Mixture<T>& m, const Function<T>& f, T* logits, int64_t tokens, const int64_t* target,
    const T* log_prior, const T* scale, T* columns, double* table_sums, int64_t sums_length,
    int threads
) {
#pragma omp parallel num_threads(threads)
    {
        Workspace<T> own(m, f.keeps());
        T* sums = columns ? columns + omp_get_thread_num() * m.classes : nullptr;
        double* own_sums =
            table_sums ? table_sums + omp_get_thread_num() * sums_length : nullptr;
#pragma omp for schedule(static)
        for (int64_t n = 0; n < tokens; ++n)
            one_token(
                m, f, n, logits + n * m.components * m.classes, target[n],
                log_prior + n * m.components, scale, sums, own_sums, own
            );
    }
}

}  // namespace

// nll [n] and, if `smooth`, Σ_x −log P_x [n] and whether a probability is too small for that, when
// logits become 0 and nothing else is done; whether the target wins, the entropy and Σ_k lse_k² [n],
// each unless null; of logits [n, K, M] and normalised log π [n, K]. With `scale` [n] the logits become their gradient and
// grad_prior [n, K] that of log π; each thread adds up its rows in its own row of columns
// [threads, M], unless null; table_sums as in softmax.cpp. Weights w [n, M] on −log P take the place of
// smoothing. With log_probs [n, M] these become log P, and nothing else is done.
#define MIXTURE(name, T)                                                                           \
    extern "C" void name(                                                                          \
        T* logits, int64_t tokens, int64_t components, int64_t classes, const T* bias,             \
        const int64_t* target, const T* log_prior, const T* scale, const T* weights,               \
        T* log_probs, int family,                                                                  \
        const double* numbers, const T* tables, int64_t length, double* table_sums,                \
        double target_weight, double smoothing_weight, double z, T* nll, T* smooth_sum,            \
        uint8_t* correct, T* entropy, T* square_norm, T* grad_prior, uint8_t* underflow,           \
        T* columns, int threads                                                                    \
    ) {                                                                                            \
        const Mixture<T> asked{                                                                    \
            components, classes, bias, T(target_weight), T(smoothing_weight), T(z),                \
            smooth_sum || weights, nll, smooth_sum, correct, entropy, square_norm, grad_prior,     \
            underflow, weights, log_probs};                                                        \
        mixture<T>(                                                                                \
            asked, *function_of(family, numbers, tables, length), logits, tokens, target,          \
            log_prior, scale, columns, table_sums, 2 * length, threads                             \
        );                                                                                         \
    }
MIXTURE(mixture_float, float)
MIXTURE(mixture_double, double)
