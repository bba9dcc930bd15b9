"""Families: a file for each, with all that is known of its checkpoints; `common` reads checkpoints by them."""
