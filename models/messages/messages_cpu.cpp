// Messages of edges and their reduction without a tensor of edges x channels. cpu.py calls the functions at the end.
#include "dots.h"
#include "general.h"

extern "C" {

int messages_run(const MessageProblem* p) try {
  Sums sums(*p);
  if (sums.fits()) return sums.run();
  Dots dots(*p);
  return dots.fits() ? dots.run() : General(*p).run();
} catch (const std::bad_alloc&) {
  return OUT_OF_MEMORY;
}
}
