"""The rules, one a file."""

ON_REQUEST = ("AMP405",)
"""The codes of those that run only if they are selected."""
