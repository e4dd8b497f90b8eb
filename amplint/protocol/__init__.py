"""The gradient-scaling protocol."""
