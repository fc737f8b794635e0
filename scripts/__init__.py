"""Commands beside training: reports of runs, benchmarks, and training under Ray."""
