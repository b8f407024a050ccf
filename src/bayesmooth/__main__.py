"""`python -m bayesmooth` is the command `bayesmooth`; `torchrun -m bayesmooth` starts several of it."""

import sys

from bayesmooth.cli import main

if __name__ == "__main__":
    sys.exit(main())
