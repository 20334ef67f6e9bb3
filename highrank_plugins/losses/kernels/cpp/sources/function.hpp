// A pointwise function f along a row of logits.
#pragma once

#include <cstdint>
#include <memory>

template <class T>
struct Function {
    virtual ~Function() = default;

    // How many numbers of each logit `evaluate` keeps for `pull_back`.
    virtual int64_t keeps() const = 0;

    // row becomes f(row + bias); returns its greatest value. `kept` [keeps(), classes] is for
    // pull_back; no bias: null.
    virtual T evaluate(T* row, int64_t classes, const T* bias, T* kept) const = 0;

    // The gradient of a row of f(z) becomes that of z; the gradients of f's tables are added to
    // sums [length, 2], unless null.
    virtual void pull_back(T* grad, int64_t classes, const T* kept, double* sums) const = 0;
};

// f by its family, a place in FAMILIES (kernels/compiled.py); tables lie in pairs [length, 2].
template <class T>
std::unique_ptr<Function<T>> function_of(
    int family, const double* numbers, const T* tables, int64_t length
);
