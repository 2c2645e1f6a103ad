"""Runs the code in its first argument, as `python -c` does; in place of training."""

import sys

if __name__ == "__main__":
    del sys.argv[0]
    exec(sys.argv[0])
