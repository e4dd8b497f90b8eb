"""amplint: finds, fixes and disproves by running the code that makes mixed-precision losses NaN."""

__version__ = "0.1.0"
