"""Activations of loops, step numbers, samplers, and the discovery of the loops to watch."""
