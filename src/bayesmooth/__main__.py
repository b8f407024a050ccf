"""`python -m bayesmooth` is the command `bayesmooth`."""

import sys

from bayesmooth.cli import main

if __name__ == "__main__":
    sys.exit(main())
