"""From parameters to a token."""
