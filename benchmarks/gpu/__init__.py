"""The parts of benchmarks that run on a GPU."""
