"""From a prompt to a text: generate and beam search."""
