"""Heads and losses of the four papers, compared with straightforward dense torch implementations, as one table.

python -m benchmarks.methods
"""

from benchmarks import methods_crt, methods_diva, methods_hist, methods_mpn
from benchmarks.timing import table

if __name__ == "__main__":
    print(table([row for module in (methods_hist, methods_mpn, methods_crt, methods_diva) for row in module.rows()]))
