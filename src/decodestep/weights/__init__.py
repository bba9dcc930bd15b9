"""What operators and models multiply by: packed blocks, panels, NZ."""
