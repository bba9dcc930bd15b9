"""How benchmarks measure: rounds, tables, plots, cases and models of random weights."""
