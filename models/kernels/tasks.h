// Lists of blocks, trained in parallel.
#pragma once
#include <cstdint>

// Trains every block of a problem. The blocks of a task run one after the other, tasks run in parallel. `loss` gets the
// sum and the count of each block.
template <class Block, class Problem>
void train_blocks(const Problem& p) {
#pragma omp parallel for num_threads(p.num_threads) schedule(dynamic, 1)
  for (int64_t task = 0; task < p.num_tasks; task++)
    for (int64_t i = p.task_ptr[task]; i < p.task_ptr[task + 1]; i++) {
      Block block(p, i);
      block.train();
      p.loss[2 * i] = block.loss, p.loss[2 * i + 1] = block.counted;
    }
}
