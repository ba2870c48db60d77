"""`python -m harness.fit`: does a training step of a model fit a device?"""

import sys

from harness.commands.fit.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
