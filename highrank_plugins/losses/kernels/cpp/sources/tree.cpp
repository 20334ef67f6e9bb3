// Mixtape's tree of sigmoid gates: the mixed logits, and the gradients in place.
//
// Inner node i < K has gate i − 1 and the children 2i and 2i + 1, leaf j is node K + j; the value
// of an inner node is σ left + (1 − σ) right.
#include <vector>

#include "elementary.hpp"

namespace {

// Columns that go through the tree together: its nodes stay in the first-level cache.
constexpr int64_t WIDTH = 256;

template <class T>
T sigmoid(T x) {
    const T decay = exponential(x < 0 ? x : -x);
    return (x < 0 ? decay : T(1)) / (1 + decay);
}

template <class T>
struct Tree {
    T* leaves;  // [n, K, S]
    int64_t leaf_row, leaf_component;
    T* gates;  // [K − 1, n, S]
    int64_t gate_row, gate_component;
    int64_t components;

    T* leaf(int64_t j, int64_t row, int64_t x) const {
        return leaves + row * leaf_row + j * leaf_component + x;
    }
    T* gate(int64_t node, int64_t row, int64_t x) const {
        return gates + row * gate_row + (node - 1) * gate_component + x;
    }

    // Values of nodes[1 … 2K − 1][WIDTH] for `width` columns, gates being σ already.
    void evaluate_nodes(int64_t row, int64_t start, int64_t width, T* nodes) const {
        for (int64_t j = 0; j < components; ++j)
            for (int64_t x = 0; x < width; ++x)
                nodes[(components + j) * WIDTH + x] = leaf(j, row, start)[x];
        for (int64_t i = components - 1; i > 0; --i) {
            const T *left = nodes + 2 * i * WIDTH, *right = left + WIDTH;
            const T* share = gate(i, row, start);
            T* value = nodes + i * WIDTH;
#pragma omp simd
            for (int64_t x = 0; x < width; ++x) {  // exact where a gate is saturated
                const T apart = left[x] - right[x];
                value[x] = share[x] < T(0.5) ? right[x] + share[x] * apart
                                             : left[x] - (1 - share[x]) * apart;
            }
        }
    }

    void tree_forward(int64_t row, int64_t start, int64_t width, T* nodes, T* out) const {
        for (int64_t i = 1; i < components; ++i) {
            T* share = gate(i, row, start);
#pragma omp simd
            for (int64_t x = 0; x < width; ++x) share[x] = sigmoid(share[x]);
        }
        evaluate_nodes(row, start, width, nodes);
        for (int64_t x = 0; x < width; ++x) out[x] = nodes[WIDTH + x];
    }

    // The gradient of a node takes the place of its value once both children's have been read.
    void tree_backward(int64_t row, int64_t start, int64_t width, T* nodes, const T* grad) const {
        evaluate_nodes(row, start, width, nodes);
        for (int64_t x = 0; x < width; ++x) nodes[WIDTH + x] = grad[x];
        for (int64_t i = 1; i < components; ++i) {
            const T* above = nodes + i * WIDTH;
            T *left = nodes + 2 * i * WIDTH, *right = left + WIDTH, *share = gate(i, row, start);
#pragma omp simd
            for (int64_t x = 0; x < width; ++x) {
                const T apart = left[x] - right[x];
                left[x] = above[x] * share[x];
                right[x] = above[x] - left[x];
                share[x] *= right[x] * apart;  // g (left − right) σ (1 − σ)
            }
        }
        for (int64_t j = 0; j < components; ++j)
            for (int64_t x = 0; x < width; ++x)
                leaf(j, row, start)[x] = nodes[(components + j) * WIDTH + x];
    }
};

// work(row, first column, width, nodes, the same columns of `mixed`) for all tiles.
template <class T, class Work>
void tiles(
    const Tree<T>& tree, T* mixed, int64_t mixed_stride, int64_t rows, int64_t classes,
    int threads, Work work
) {
#pragma omp parallel num_threads(threads)
    {
        std::vector<T> nodes(2 * tree.components * WIDTH);
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t start = 0; start < classes; start += WIDTH) {
                const int64_t width = classes - start < WIDTH ? classes - start : WIDTH;
                T* there = mixed + r * mixed_stride + start;
                work(r, start, width, nodes.data(), there);
            }
    }
}

}  // namespace

// tree_forward: out [n, S] = Σ_j π_j leaf_j, and gate logits become σ. tree_backward: leaves and σ become the
// gradients of leaves and gate logits, given that of out, which stays. Strides are in numbers.
#define TREE(name, step, T)                                                                        \
    extern "C" void name(                                                                          \
        T* leaves, int64_t leaf_row, int64_t leaf_component,                                       \
        T* gates, int64_t gate_row, int64_t gate_component, T* mixed, int64_t mixed_stride,        \
        int64_t rows, int64_t classes, int64_t components, int threads                             \
    ) {                                                                                            \
        const Tree<T> tree{                                                                        \
            leaves, leaf_row, leaf_component, gates, gate_row, gate_component, components};        \
        tiles(tree, mixed, mixed_stride, rows, classes, threads,                                   \
              [&](int64_t row, int64_t start, int64_t width, T* nodes, T* there) {                 \
                  tree.step(row, start, width, nodes, there);                                      \
              });                                                                                  \
    }
TREE(tree_forward_float, tree_forward, float)
TREE(tree_forward_double, tree_forward, double)
TREE(tree_backward_float, tree_backward, float)
TREE(tree_backward_double, tree_backward, double)
