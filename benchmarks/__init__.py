"""The benchmarks, as `decodestep bench` runs them: scripts, each on its own."""
