"""A demo of training: a small GPT in torch, whose attention is libflashattn's."""
