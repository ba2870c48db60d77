"""`python -m harness.profile`: where does the time of a training step go?"""

import sys

from harness.commands.profile import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
