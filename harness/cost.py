"""`python -m harness.cost`: what do tokens and a training run cost?"""

import sys

from harness.commands.cost.command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
