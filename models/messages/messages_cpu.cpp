// Messages of edges and their reduction without a tensor of edges x channels. cpu.py calls the functions at the end.
#include "general.h"
#include "sums.h"

extern "C" {

int64_t messages_problem_size() { return sizeof(MessageProblem); }

const char* messages_simd() { return SIMD_NAME; }

int messages_run(const MessageProblem* p) try {
  Sums sums(*p);
  return sums.fits() ? sums.run() : General(*p).run();
} catch (const std::bad_alloc&) {
  return OUT_OF_MEMORY;
}
}
