// What models/embedding/skipgram.py calls.
#include "skipgram.h"

extern "C" {

int64_t skipgram_problem_size() { return sizeof(SkipGramProblem); }

void skipgram_train(const SkipGramProblem* p) {
  using namespace skipgram;
  if (p->optimizer == SGD) train<SGD>(*p);
  else if (p->optimizer == ADAGRAD) train<ADAGRAD>(*p);
  else train<ADAM>(*p);
}
}
