"""A talking demo: a small language model in numpy, whose attention is libflashattn's."""
