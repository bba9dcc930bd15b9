"""What the tests of several rooms share: oracles, small models and files, calls at random, processes."""
