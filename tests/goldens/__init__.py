"""What vendors publish to test their operators by, run against ours: a file for each operator, by the name of its function.

`tests/run_goldens.py` runs them. Nothing of a golden is kept here: a `Source` says where it is, and a copy lies in the folder
that DECODESTEP_GOLDENS names.
"""
