// Products of each row's heads with the matrices of all relations, and their gradients; head_products.py calls them.
// Rows are cut into chunks that depend only on their number, never on the number of threads.
#include <algorithm>

#include "simd.h"

constexpr int ROWS = 4;         // rows that share a matrix's vectors in registers
constexpr int PART = 32;        // rows whose gradients stay in the second-level cache
constexpr int INPUTS = 8;       // rows of a matrix's gradient in registers
constexpr int NUM_CHUNKS = 32;  // as in head_products.py

struct HeadProblem {  // head_products.py reads its fields from here
  int64_t num_rows, num_relations, heads, width, x_stride, num_threads;
  const float* x;         // [num_rows, heads x width], rows x_stride apart
  const float* weight;    // [num_relations, heads, width, width]; to differentiate x, the matrices transposed
  float* out;             // [num_rows, num_relations, heads x width]
  const float* gradient;  // of out
  float* grad_x;          // [num_rows, heads x width]
  float* grad_weight;     // [NUM_CHUNKS, num_relations, heads, width, width], to be summed
};

namespace {

// Adds COUNT rows' products with one matrix [width, width], a block of its columns. Row i lies at from + i * stride.
template <int COUNT>
INLINE void add_products(const float* from, int64_t stride, const float* matrix, int64_t width, int lanes, vf* sums) {
  for (int64_t k = 0; k < width; k++) {
    const vf column = load(matrix + k * width, lanes);
    for (int i = 0; i < COUNT; i++) sums[i] = fma(splat(from[i * stride + k]), column, sums[i]);
  }
}

// Writes the sum over `terms` of COUNT rows' products with a matrix each: rows and matrices of the next term lie from_step
// and matrix_step further on.
template <int COUNT>
INLINE void multiply(const HeadProblem& p, int64_t terms, const float* from, int64_t stride, int64_t from_step,
                     const float* matrix, int64_t matrix_step, float* to, int64_t to_stride) {
  for (int64_t j = 0; j < p.width; j += LANES) {
    const int lanes = int(std::min<int64_t>(LANES, p.width - j));
    vf sums[COUNT] = {};
    for (int64_t term = 0; term < terms; term++)
      add_products<COUNT>(from + term * from_step, stride, matrix + term * matrix_step + j, p.width, lanes, sums);
    for (int i = 0; i < COUNT; i++) store(to + i * to_stride + j, sums[i], lanes);
  }
}

// Calls visit(first row, number of rows as a constant) for the rows of a chunk, up to ROWS at a time.
template <class Visit>
INLINE void for_rows(int64_t begin, int64_t end, const Visit& visit) {
  for (; begin + ROWS <= end; begin += ROWS) visit.template operator()<ROWS>(begin);
  for (; begin < end; begin++) visit.template operator()<1>(begin);
}

struct Forward {
  const HeadProblem& p;
  template <int COUNT>
  INLINE void operator()(int64_t row) const {
    const int64_t channels = p.heads * p.width, out_stride = p.num_relations * channels;
    for (int64_t relation = 0; relation < p.num_relations; relation++)
      for (int64_t head = 0; head < p.heads; head++)
        multiply<COUNT>(p, 1, p.x + row * p.x_stride + head * p.width, p.x_stride, 0,
                        p.weight + (relation * p.heads + head) * p.width * p.width, 0,
                        p.out + row * out_stride + relation * channels + head * p.width, out_stride);
  }
};

struct BackwardX {
  const HeadProblem& p;
  template <int COUNT>
  INLINE void operator()(int64_t row) const {
    const int64_t channels = p.heads * p.width, stride = p.num_relations * channels;
    for (int64_t head = 0; head < p.heads; head++)
      multiply<COUNT>(p, p.num_relations, p.gradient + row * stride + head * p.width, stride, channels,
                      p.weight + head * p.width * p.width, channels * p.width,
                      p.grad_x + row * channels + head * p.width, channels);
  }
};

// Adds the gradient of COUNT rows of a matrix, from x[row][k ...] and gradient[row][j ...].
template <int COUNT>
INLINE void add_outer(const HeadProblem& p, int64_t begin, int64_t end, const float* x, const float* gradient,
                      int64_t stride, float* to, int lanes) {
  vf sums[COUNT] = {};
  for (int64_t row = begin; row < end; row++) {
    const vf grad = load(gradient + row * stride, lanes);
    for (int i = 0; i < COUNT; i++) sums[i] = fma(splat(x[row * p.x_stride + i]), grad, sums[i]);
  }
  for (int i = 0; i < COUNT; i++) store(to + i * p.width, load(to + i * p.width, lanes) + sums[i], lanes);
}

void differentiate_weight(const HeadProblem& p, int64_t begin, int64_t end, float* grad_weight) {
  const int64_t channels = p.heads * p.width, stride = p.num_relations * channels;
  for (int64_t relation = 0; relation < p.num_relations; relation++)
    for (int64_t head = 0; head < p.heads; head++) {
      float* matrix = grad_weight + (relation * p.heads + head) * p.width * p.width;
      for (int64_t j = 0; j < p.width; j += LANES) {
        const int lanes = int(std::min<int64_t>(LANES, p.width - j));
        const float* gradient = p.gradient + relation * channels + head * p.width + j;
        int64_t k = 0;
        for (; k + INPUTS <= p.width; k += INPUTS)
          add_outer<INPUTS>(p, begin, end, p.x + head * p.width + k, gradient, stride, matrix + k * p.width + j, lanes);
        for (; k < p.width; k++)
          add_outer<1>(p, begin, end, p.x + head * p.width + k, gradient, stride, matrix + k * p.width + j, lanes);
      }
    }
}

// Calls visit(chunk, its first row, the row after its last).
template <class Visit>
void for_chunks(const HeadProblem& p, const Visit& visit) {
#pragma omp parallel for num_threads(p.num_threads) schedule(dynamic, 1)
  for (int64_t chunk = 0; chunk < NUM_CHUNKS; chunk++)
    visit(chunk, p.num_rows * chunk / NUM_CHUNKS, p.num_rows * (chunk + 1) / NUM_CHUNKS);
}

}  // namespace

extern "C" {

void head_forward(const HeadProblem* p) {
  for_chunks(*p, [&](int64_t, int64_t begin, int64_t end) { for_rows(begin, end, Forward{*p}); });
}

void head_backward_x(const HeadProblem* p) {
  for_chunks(*p, [&](int64_t, int64_t begin, int64_t end) { for_rows(begin, end, BackwardX{*p}); });
}

void head_backward_weight(const HeadProblem* p) {  // grad_weight must be 0 at first
  const int64_t size = p->num_relations * p->heads * p->width * p->width;
  for_chunks(*p, [&](int64_t chunk, int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; row += PART)
      differentiate_weight(*p, row, std::min(row + PART, end), p->grad_weight + chunk * size);
  });
}
}
