"""The parts of flashattn.jax, a job per module."""
