"""What the descriptions of families are made of, and how checkpoints are read by them."""
