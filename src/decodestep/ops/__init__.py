"""The operators, one folder each: the contract in `__init__`, the oracle in `reference`, the kernels beside it."""
