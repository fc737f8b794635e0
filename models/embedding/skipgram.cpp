// The functions that skipgram.py calls.
#include "skipgram.h"

extern "C" {

void skipgram_train(const SkipGramProblem* p) {
  using namespace skipgram;
  if (p->optimizer == SGD) train_blocks<Block<SGD>>(*p);
  else if (p->optimizer == ADAGRAD) train_blocks<Block<ADAGRAD>>(*p);
  else train_blocks<Block<ADAM>>(*p);
}
}
