"""What all tests share."""

from hypothesis import settings

# On a busy machine, and while coverage is measured, any example may take long.
settings.register_profile("amplint", deadline=None)
settings.load_profile("amplint")
