"""Output formats, one a module."""
