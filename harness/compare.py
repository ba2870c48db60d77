"""`python -m harness.compare`: what changed between two results folders?"""

import sys

from harness.commands.compare.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
