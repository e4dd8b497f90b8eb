"""What an expression can be."""
