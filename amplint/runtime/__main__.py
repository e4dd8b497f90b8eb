"""`python -m amplint.runtime SCRIPT [ARGS…]`."""

import sys

from amplint.runtime.child import main

if __name__ == "__main__":
    sys.exit(main())
