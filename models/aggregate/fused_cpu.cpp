// Aggregation of GENConv without a tensor of edges x channels: forward by destination, backward by source, each edge
// visited once in each. cpu.py calls the functions at the end of this file.
#include "backward.h"
#include "forward.h"

template <template <class> class Pass>
static int dispatch(const Problem& p) try {
  switch (p.aggregation) {
    case SOFTMAX: return Pass<Softmax>(p).run();
    case SOFTMAX_SG: return Pass<SoftmaxSemiGrad>(p).run();
    case POWER: return Pass<Power>(p).run();
    case ADD: return Pass<Add>(p).run();
    default: return Pass<Max>(p).run();
  }
} catch (const std::bad_alloc&) {
  return OUT_OF_MEMORY;
}

// Groups edges by `key` with a stable counting sort.
template <class T>
static int sort_by(const T* key, const T* other, int64_t num_edges, int64_t num_keys, T* ptr, T* sorted_other,
                   T* position) {
  std::fill_n(ptr, num_keys + 1, T(0));
  for (int64_t e = 0; e < num_edges; e++) {
    if (key[e] < 0 || key[e] >= num_keys) return BROKEN_INDEX;
    ptr[key[e] + 1]++;
  }
  for (int64_t k = 0; k < num_keys; k++) ptr[k + 1] += ptr[k];
  std::vector<T> next(ptr, ptr + num_keys);
  for (int64_t e = 0; e < num_edges; e++) {
    T to = next[key[e]]++;
    sorted_other[to] = other[e];
    position[to] = T(e);
  }
  return OK;
}

extern "C" {

int64_t fused_problem_size() { return sizeof(Problem); }

const char* fused_simd() { return SIMD_NAME; }

int fused_forward(const Problem* p) { return dispatch<Forward>(*p); }

int fused_backward(const Problem* p) { return dispatch<Backward>(*p); }

int fused_sort(const void* key, const void* other, int64_t num_edges, int64_t num_keys, int wide, void* ptr,
               void* sorted_other, void* position) {
  if (wide)
    return sort_by((const int64_t*)key, (const int64_t*)other, num_edges, num_keys, (int64_t*)ptr,
                   (int64_t*)sorted_other, (int64_t*)position);
  return sort_by((const int32_t*)key, (const int32_t*)other, num_edges, num_keys, (int32_t*)ptr,
                 (int32_t*)sorted_other, (int32_t*)position);
}
}
